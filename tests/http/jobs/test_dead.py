"""J2: dead jobs are listed, kicked, replayed and deleted; none is dropped silently."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue, OfferOutcome
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.jobs.catalogue import (
    configure_topic,
    forget_topics,
    known_topic,
    list_topics,
    read_topic,
    topic_stats,
)
from delayed_queue.http.jobs.consuming import bury_job, peek
from delayed_queue.http.jobs.dead import (
    dead_jobs,
    delete_dead_job,
    find_dead_job,
    kick_topic,
    replay,
)
from delayed_queue.http.jobs.jobs import Answer, JobState
from delayed_queue.http.store.topics import TopicRow
from delayed_queue.models import DeadLetter, Message
from tests.http.jobs.support import URL, add, pop_jobs

pytestmark = pytest.mark.django_db


def kill(*names: str, topic: str = "orders", url: str | None = None) -> None:
    for name in names:
        add(name, topic, url=url, body={"name": name})
        kind = f"{topic}|callback" if url else f"{topic}|json"
        assert Message.objects.claim(kind, 1, "lease", 60_000)
        assert bury_job(topic, name, "lease") is Answer.DONE


def test_dead_jobs_are_listed_page_by_page() -> None:
    kill("a", "b", "c")
    kill("d", url=URL)
    kill("x", topic="other")

    first = dead_jobs("orders", limit=3)
    rest = dead_jobs("orders", after=first[-1].id, limit=3)
    assert [each.job_id for each in (*first, *rest)] == ["a", "b", "c", "d"]
    assert rest[0].url == URL
    assert first[0].body == {"name": "a"}
    assert len(dead_jobs()) == 5
    assert [each.job_id for each in dead_jobs(covers=lambda topic: topic == "other")] == ["x"]


def test_dead_letters_that_are_no_jobs_are_not_listed() -> None:
    queue = DelayedQueue("orders", codec="text")
    queue.offer_or_update("a", "b")
    envelope = queue.try_poll()
    assert envelope is not None
    envelope.reject("no")

    assert dead_jobs() == []
    letter = DeadLetter.objects.get()
    assert find_dead_job(letter.id) is None
    assert replay(letter.id) is Answer.MISSING
    assert not delete_dead_job(letter.id)


def test_a_body_that_is_no_json_is_listed_as_none() -> None:
    kill("a")
    DeadLetter.objects.update(payload=b"\xff")
    assert dead_jobs()[0].body is None


@pytest.mark.parametrize("url", [None, URL])
def test_a_job_that_lives_again_whichever_way_is_not_replayed(url: str | None) -> None:
    kill("a")
    add("a", url=url, if_exists="update")

    assert replay(dead_jobs()[0].id) is Answer.STALE
    assert kick_topic("orders") == 0
    assert Message.objects.count() == DeadLetter.objects.count() == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("dead", "active"), [(None, URL), (URL, None)])
def test_j5_a_redrive_of_queues_and_admin_leaves_an_id_that_lives_the_other_way(
    dead: str | None, active: str | None, overwrite: bool
) -> None:
    configure_topic("orders", shards=1)
    kill("a", url=dead)
    add("a", url=active, if_exists="update")
    configure_topic("orders", shards=8)  # its shard may change, too

    (letter,) = DeadLetter.objects.all()
    assert DeadLetter.objects.redrive([letter.id], overwrite=overwrite)[0].created is None
    assert Message.objects.count() == DeadLetter.objects.count() == 1


def test_j5_of_letters_of_both_ways_the_newest_is_redriven() -> None:
    kill("a")
    add("a", url=URL, if_exists="update")
    Message.objects.claim("orders|callback", 1, "lease", 60_000)
    bury_job("orders", "a", "lease")

    letters = list(DeadLetter.objects.order_by("id").values_list("id", flat=True))
    created = {each.id: each.created for each in DeadLetter.objects.redrive(letters)}
    assert created == {letters[0]: None, letters[1]: True}
    assert Message.objects.get().kind == "orders|callback"


def test_the_same_key_elsewhere_is_another_message() -> None:
    """Another topic, and a kind without a topic, do not block a redrive."""
    kill("a")
    add("a", "orders2")
    DelayedQueue("orders", codec="text").offer_or_update("a", "x")
    DelayedQueue("orders", kind="orders").offer_or_update("a", "x")

    assert DelayedQueue("orders").redrive_all() == {OfferOutcome.CREATED: 1}
    assert Message.objects.count() == 4


def test_the_newest_letter_of_a_job_is_kicked_and_the_others_stay() -> None:
    for n in range(3):
        add("a", body=n, if_exists="update")
        bury_job("orders", "a", pop_jobs("orders")[0].lease_token)

    assert kick_topic("orders") == 1
    assert pop_jobs("orders")[0].body == 2
    assert DeadLetter.objects.count() == 2


def test_of_a_job_that_died_in_two_batches_the_newest_is_kicked() -> None:
    """A limit of one is the smallest batch."""
    kill("a", url=URL)
    kill("b")
    add("a", body="new", if_exists="update")
    bury_job("orders", "a", pop_jobs("orders")[0].lease_token)

    assert [kick_topic("orders", 1) for _ in range(3)] == [1, 1, 0]
    assert {each.job_id: each.body for each in pop_jobs("orders", 2)} == {
        "a": "new",
        "b": {"name": "b"},
    }
    assert DeadLetter.objects.get().kind == "orders|callback"


def test_a_topic_is_kicked_oldest_first_and_no_further_than_the_limit() -> None:
    configure_topic("orders", shards=3)
    for n in range(250):
        add(str(n))
    for job in pop_jobs("orders", 250):
        bury_job("orders", job.job_id, job.lease_token)

    assert kick_topic("orders", 220) == 220
    assert kick_topic("orders", 220) == 30
    assert kick_topic("orders", 220) == 0
    assert len(pop_jobs("orders", 300)) == 250


def test_counts_are_over_all_shards_and_ways() -> None:
    configure_topic("orders", shards=4)
    for n in range(20):
        add(f"d{n}", delay=60)
        add(f"u{n}", url=URL)
        add(f"p{n}")
    for job in pop_jobs("orders", 5)[:2]:
        bury_job("orders", job.job_id, job.lease_token)

    stats = topic_stats("orders")
    counts = (stats.delayed, stats.ready, stats.reserved, stats.dead)
    assert counts == (20, 35, 3, 2)
    assert not stats.is_capped
    assert stats.oldest_ready_seconds is not None
    assert stats.shards == 4


@pytest.mark.parametrize("state", JobState)
def test_peek_shows_the_next_jobs_of_a_state_and_leases_none(state: JobState) -> None:
    configure_topic("orders", shards=4)
    for n in range(6):
        add(f"delayed-{n}", delay=60 + n, url=URL if n % 2 else None)
        add(f"dead-{n}")
    for job in pop_jobs("orders", 6):
        bury_job("orders", job.job_id, job.lease_token)
    for n in range(6):
        add(f"reserved-{n}")
    pop_jobs("orders", 6)
    for n in range(6):
        add(f"ready-{n}")

    jobs = peek("orders", state, 4)
    assert {each.state for each in jobs} == {state}
    names = [f"{state}-{n}" for n in range(4)]
    if state in {JobState.DELAYED, JobState.READY}:
        assert [each.job_id for each in jobs] == names
    assert len(jobs) == 4
    assert peek("orders", state, 4) == jobs


def test_a_queue_of_django_code_is_a_topic_once_it_holds_something() -> None:
    add("a", "one")
    DelayedQueue("two").offer_or_update("a", 1)
    DelayedQueue("three", codec="text").offer_or_update("a", "1")
    DelayedQueue("not a topic").offer_or_update("a", 1)

    assert [each.name for each in list_topics()] == ["one", "two"]


class TestConfigure:
    def test_what_is_not_given_stays(self) -> None:
        configure_topic("orders", shards=2)
        assert configure_topic("orders", groups=None) == TopicRow("orders", 2)
        assert read_topic("orders") == known_topic("orders")

    @pytest.mark.parametrize("shards", [0, 65, True])
    def test_other_numbers_of_shards_are_refused(self, shards: int) -> None:
        with pytest.raises(InvalidConfiguration):
            configure_topic("orders", shards=shards)

    @pytest.mark.parametrize("state", JobState)
    def test_a_shard_that_holds_a_job_stays(self, state: JobState) -> None:
        configure_topic("orders", shards=2)
        names = [str(n) for n in range(10)]
        for name in names:
            add(name, delay=60 if state is JobState.DELAYED else 0)
        if state in {JobState.RESERVED, JobState.DEAD}:
            jobs = pop_jobs("orders", 10)
        if state is JobState.DEAD:
            for job in jobs:
                bury_job("orders", job.job_id, job.lease_token)

        with pytest.raises(InvalidConfiguration, match="hold jobs"):
            configure_topic("orders", shards=1)
        assert read_topic("orders").shards == 2

    def test_shards_that_are_empty_can_go(self) -> None:
        configure_topic("orders", shards=64)
        assert configure_topic("orders", shards=1).shards == 1

    def test_a_topic_without_a_row_has_the_defaults(self) -> None:
        forget_topics()
        assert known_topic("orders") == TopicRow("orders", 1)
