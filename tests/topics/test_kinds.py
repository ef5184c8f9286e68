"""Where jobs are stored, and under which names."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.codecs import MAX_KIND_LENGTH
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.http.jobs.consuming import pop_jobs
from delayed_queue.http.jobs.finding import find_job
from delayed_queue.http.jobs.kinds import (
    MAX_SHARDS,
    MAX_TOPIC_LENGTH,
    TopicKind,
    Way,
    check_topic,
    kinds_of_topic,
    parse_kind,
    shard_of,
)
from delayed_queue.models import Message
from tests.topics.support import URL, add, found


def test_the_longest_kind_fits_into_its_column() -> None:
    longest = max(kinds_of_topic("t" * MAX_TOPIC_LENGTH, MAX_SHARDS), key=len)
    assert len(longest) <= MAX_KIND_LENGTH


def test_every_kind_of_a_topic_tells_its_topic_shard_and_way() -> None:
    kinds = kinds_of_topic("a.b:c-d_1", MAX_SHARDS)
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
    """In all shards and both ways: what is stored by the code's names is found by SQL's."""
    configure_topic("orders", shards=MAX_SHARDS)
    ids = {way: [f"{way}-{n}" for n in range(600)] for way in Way}
    for way, names in ids.items():
        for name in names:
            add(name, url=URL if way is Way.CALLBACK else None)

    kinds = set(Message.objects.values_list("kind", flat=True))
    assert kinds == set(kinds_of_topic("orders", MAX_SHARDS))
    assert all(find_job("orders", name) for names in ids.values() for name in names)
