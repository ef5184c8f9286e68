"""Kinds of jobs: their tables, and their names."""

from __future__ import annotations

from typing import Final

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.codecs import MAX_KIND_LENGTH
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.jobs.adding import find_job
from delayed_queue.http.jobs.catalogue import configure_topic, pause_topic, resume_topic
from delayed_queue.http.jobs.kinds import (
    MAX_SHARDS,
    MAX_TOPIC_LENGTH,
    OWN_SHARDS,
    TopicKind,
    Way,
    check_topic,
    host_of,
    kinds_of_topic,
    parse_kind,
    shard_of,
    shard_of_host,
    with_hosts,
)
from delayed_queue.models import Limit, Message
from tests.http.jobs.support import URL, add, found, pop_jobs

FULL: Final = " ".join(f"host-{n}:443" for n in range(OWN_SHARDS))


def test_the_longest_kind_fits_into_its_column() -> None:
    longest = max(kinds_of_topic("t" * MAX_TOPIC_LENGTH, MAX_SHARDS, hosts=FULL), key=len)
    assert len(longest) <= MAX_KIND_LENGTH


def test_every_kind_of_a_topic_tells_its_topic_shard_and_way() -> None:
    kinds = kinds_of_topic("a.b:c-d_1", MAX_SHARDS, hosts=FULL)
    assert len(set(kinds)) == 2 * MAX_SHARDS
    expected = [TopicKind("a.b:c-d_1", shard, way) for way in Way for shard in range(MAX_SHARDS)]
    assert [parse_kind(kind) for kind in kinds] == expected


@pytest.mark.parametrize(
    "kind", ["a", "a|text", "a#0|json", "a#01|json", "a#64|json", "a b|json", "|json", "a|json\n"]
)
def test_other_kinds_are_no_topics(kind: str) -> None:
    assert parse_kind(kind) is None


@pytest.mark.parametrize(
    "name", ["", "a" * 81, "a b", "a/b", "a#1", "a|b", "-a", ".a", "ü", "a\n", "a\x00", 7, None]
)
def test_names_that_no_kind_can_be_made_of_are_refused(name: str) -> None:
    with pytest.raises(InvalidMessage):
        check_topic(name)


def test_a_shard_is_the_same_in_every_process() -> None:
    """CRC-32 of the UTF-8 text, as zlib, PHP, Java and PostgreSQL's extensions compute it."""
    assert [shard_of(each, 64) for each in ("order-1", "order-2", "é")] == [47, 21, 62]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://Example.com/hook", "example.com:443"), ("HTTP://example.com", "example.com:80"),
        ("http://[2001:DB8::1]:8080/x?a=b", "2001:db8::1:8080"), ("https://a:99999/", ""),
        ("example.com", ""), ("http://a b/", ""), ("http://" + "a" * 300, ""), ("", ""),
    ],
)  # fmt: skip
def test_the_host_of_a_url(url: str, host: str) -> None:
    assert host_of(url) == host


def test_the_first_hosts_have_a_shard_each_and_the_others_share() -> None:
    known = with_hosts("b:1", ["a:1", "b:1", ""])
    assert known == "b:1 a:1"
    assert [shard_of_host(host, known) for host in ("b:1", "a:1", "c:1", "")] == [0, 1, 0, 0]
    assert with_hosts(FULL, ["late:443"]) == FULL
    assert {shard_of_host(f"late-{n}:443", FULL) for n in range(999)} == set(
        range(OWN_SHARDS, MAX_SHARDS)
    )
    assert shard_of_host("host-7:443", FULL) == 7


@pytest.mark.django_db
def test_a_job_moves_to_the_shard_of_its_new_host_and_is_one() -> None:
    for host in ("a", "b", "a"):
        assert add("1", url=f"https://{host}.example/", if_exists="update").outcome is not None
        shard = {"a": "", "b": "#1"}[host]
        assert Message.objects.get().kind == f"orders{shard}|callback"
    assert add("1", url="https://c.example/").outcome is None
    assert add("1").outcome is None


@pytest.mark.django_db
def test_a_paused_topic_sends_to_no_new_host() -> None:
    add("1", url=URL)
    pause_topic("orders")
    add("2", url="https://another.example/")
    assert Limit.objects.filter(kind="orders#1|callback").exists()
    resume_topic("orders")
    assert not Limit.objects.exists()


@pytest.mark.django_db
def test_a_message_of_a_queue_is_a_job_of_the_topic_and_the_other_way_round() -> None:
    queue = DelayedQueue("orders")
    queue.offer_or_update("a", {"n": 1})
    add("b", body={"n": 2})

    assert found("a").state == "ready"
    assert [(each.job_id, each.body) for each in pop_jobs("orders", 2)] == [
        ("a", {"n": 1}), ("b", {"n": 2}),
    ]  # fmt: skip
    assert queue.contains_message("b")


@pytest.mark.django_db
def test_jobs_with_a_url_are_never_popped() -> None:
    add("a", url=URL)

    assert pop_jobs("orders") == []
    assert set(Message.objects.values_list("kind", flat=True)) == {"orders|callback"}


@pytest.mark.django_db
def test_statements_name_kinds_as_the_code_does() -> None:
    """In all shards and both ways: SQL's names find the rows stored under the code's names."""
    configure_topic("orders", shards=MAX_SHARDS)
    # The first name, and the first host, of each shard.
    keys = {shard_of(f"pop-{n}", MAX_SHARDS): f"pop-{n}" for n in reversed(range(600))}
    late = {shard_of_host(f"late-{n}:443", FULL): f"late-{n}:443" for n in reversed(range(999))}
    hosts = [*FULL.split(), *late.values()]
    for key in keys.values():
        add(key)
    for host in hosts:
        add(host, url=f"https://{host}/")

    kinds = set(Message.objects.values_list("kind", flat=True))
    assert kinds == set(kinds_of_topic("orders", MAX_SHARDS, hosts=FULL))
    assert all(find_job("orders", name) for name in [*keys.values(), *hosts])
