"""J1, J3: popping, and the outcome of a job with and without a settlement."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection

from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.jobs.adding import delete_job, find_job
from delayed_queue.http.jobs.catalogue import configure_topic, pause_topic, resume_topic
from delayed_queue.http.jobs.consuming import Pop, bury_job, finish_job, release_job, touch_job
from delayed_queue.http.jobs.dead import dead_jobs, kick_job
from delayed_queue.http.jobs.jobs import DEFAULT_LADDER, Answer, JobState, delay_after_failure
from delayed_queue.http.jobs.kinds import Way, kinds_of_topic, shard_of
from delayed_queue.models import DeadLetter, Message
from tests.http.jobs.support import URL, add, found, let_pass, pop_jobs, popped, server_now

pytestmark = pytest.mark.django_db
DONE, STALE, MISSING = Answer.DONE, Answer.STALE, Answer.MISSING
LADDER = [15, 180, 600, 1800, 1800, 3600, 7200, 21600, 54000]
SETTLING: dict[str, Any] = {
    "finish": finish_job, "release": release_job, "touch": touch_job, "bury": bury_job,
}  # fmt: skip


def test_j1_the_default_ladder_is_nine_waits_of_25_h_13_m_15_s() -> None:
    waits = [delay_after_failure({}, attempt) for attempt in range(1, 10)]
    assert waits == [timedelta(seconds=each) for each in LADDER]
    assert sum(LADDER) == 25 * 3600 + 13 * 60 + 15
    assert delay_after_failure({}, 10) is None
    assert len(DEFAULT_LADDER.split()) == 9


def test_j1_each_wait_begins_at_the_end_of_the_failed_attempt() -> None:
    """The tenth failure is the last: the job becomes a dead letter."""
    add(body={"order": 7}, ttr=60)
    for failures, seconds in enumerate(LADDER, start=1):
        job = popped()
        assert job.attempt == failures
        let_pass(timedelta(seconds=20))  # duration of the attempt
        before = server_now()
        assert release_job("orders", "a", job.lease_token) is DONE
        after = server_now()
        stored = found()
        wait = timedelta(seconds=seconds)
        assert stored.run_at is not None
        assert before + wait <= stored.run_at <= after + wait
        assert (stored.state, stored.retry) == (JobState.DELAYED, failures)
        let_pass(wait - timedelta(seconds=1))
        assert pop_jobs("orders") == []
        let_pass(timedelta(seconds=1))
    assert release_job("orders", "a", popped().lease_token) is DONE

    (dead,) = dead_jobs("orders")
    assert (dead.job_id, dead.body, dead.retry) == ("a", {"order": 7}, 10)
    assert dead.reason == "attempts exhausted"
    assert not Message.objects.exists()


def test_j1_a_job_may_have_a_ladder_of_its_own() -> None:
    add(ladder="2m 3m")
    job, before, wait = popped(), server_now(), timedelta(minutes=2)
    release_job("orders", "a", job.lease_token)
    run_at = found().run_at
    assert run_at is not None
    assert before + wait <= run_at <= server_now() + wait


def test_j1_jitter_spreads_each_wait() -> None:
    spread = {delay_after_failure({"jitter": 0.2}, 2) for _ in range(200)}
    assert all(each is not None for each in spread)
    least, most = timedelta(seconds=180 * 0.8), timedelta(seconds=180 * 1.2)
    assert all(least <= each <= most for each in spread if each is not None)
    assert len(spread) > 100


def test_an_initial_retry_begins_higher_on_the_ladder() -> None:
    add(retry=8)
    job = popped()
    assert (job.attempt, found().retry) == (9, 8)
    before = server_now()
    release_job("orders", "a", job.lease_token)
    stored = found()
    wait = timedelta(hours=15)
    assert stored.run_at is not None
    assert before + wait <= stored.run_at <= server_now() + wait
    let_pass(wait)
    release_job("orders", "a", popped().lease_token)
    assert found().state is JobState.DEAD


def test_a_job_added_beyond_its_ladder_has_one_attempt() -> None:
    add(retry=500)
    release_job("orders", "a", popped().lease_token)
    assert found().state is JobState.DEAD


def test_a_released_job_waits_as_its_consumer_says_but_counts() -> None:
    add(ladder="1h")
    release_job("orders", "a", popped().lease_token, delay=timedelta(0))
    assert (found().state, found().retry) == (JobState.READY, 1)
    release_job("orders", "a", popped().lease_token, delay=timedelta(0))
    assert found().state is JobState.DEAD


def test_an_expired_lease_is_a_failure_and_the_last_one_makes_a_dead_job() -> None:
    add(ttr=5, ladder="1h 1h", body="b")
    for attempt in (1, 2, 3):
        assert popped().attempt == attempt
        assert found().retry == attempt - 1
        let_pass(timedelta(seconds=5))
        assert (found().state, found().retry) == (JobState.READY, attempt)
    assert pop_jobs("orders") == []

    (dead,) = dead_jobs("orders")
    assert (dead.reason, dead.last_error, dead.body) == (
        "attempts exhausted", "the lease expired", "b",
    )  # fmt: skip


def test_a_pop_looks_on_behind_jobs_that_it_buries() -> None:
    for name in ("a", "b"):
        add(name, ttr=5, ladder="1h")
        popped()
    let_pass(timedelta(seconds=5))
    pop_jobs("orders", 2)
    let_pass(timedelta(seconds=5))
    add("c")

    assert popped().job_id == "c"
    assert {each.job_id for each in dead_jobs("orders")} == {"a", "b"}


def test_a_body_that_is_no_json_makes_a_dead_job() -> None:
    add()
    Message.objects.update(payload=b"\xff")
    assert pop_jobs("orders") == []
    assert found().state is JobState.DEAD


@pytest.mark.parametrize(
    ("asked", "own", "expected"), [(7, 30, 7), (None, 30, 30), (None, None, 300)]
)
def test_how_long_a_lease_lasts(asked, own, expected):
    add(ttr=own)
    before = server_now()
    (job,) = pop_jobs("orders", ttr=None if asked is None else timedelta(seconds=asked))

    assert before + timedelta(seconds=expected) <= job.leased_until
    assert job.leased_until <= server_now() + timedelta(seconds=expected)
    if asked is None:
        let_pass(timedelta(seconds=expected - 1))
        before = server_now()
        assert touch_job("orders", "a", job.lease_token) is DONE
        until = found().leased_until
        assert until is not None
        assert until >= before + timedelta(seconds=expected)


@pytest.mark.parametrize("ttr", ['"5"', "null", "1e400", "-5", "0", "true", "[1]", '{"a": 1}'])
def test_headers_of_other_writers_harm_no_pop(ttr: str) -> None:
    add("a")
    add("b")
    headers = f'{{"ttr": {ttr}, "ladder": {ttr}, "retry": {ttr}, "jitter": {ttr}, "url": {ttr}}}'
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayed_queue SET headers = %s::jsonb", [headers])
    jobs = pop_jobs("orders", 2)
    assert len(jobs) == 2
    assert touch_job("orders", "a", jobs[0].lease_token) is DONE
    assert release_job("orders", "a", jobs[0].lease_token) is DONE
    assert found().retry >= 1


@pytest.mark.parametrize("headers", ["[]", "5", '"a"', "null"])
def test_headers_that_are_no_object_count_as_none(headers: str) -> None:
    add("a")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE delayed_queue SET headers = %s::jsonb", [headers])
    assert release_job("orders", "a", popped().lease_token) is DONE
    assert found().url is None


@pytest.mark.parametrize("call", SETTLING)
class TestLeases:
    def test_another_lease_changes_nothing(self, call: str) -> None:
        add()
        popped()
        before = found()
        assert SETTLING[call]("orders", "a", "token") is STALE
        assert found() == before

    def test_a_lease_that_another_consumer_has_taken_over_is_stale(self, call: str) -> None:
        add(ttr=5)
        token = popped().lease_token
        let_pass(timedelta(seconds=5))
        popped()
        assert SETTLING[call]("orders", "a", token) is STALE
        assert found().state is JobState.RESERVED

    def test_one_that_expired_but_was_not_taken_over_still_holds(self, call: str) -> None:
        add(ttr=5)
        token = popped().lease_token
        let_pass(timedelta(seconds=5))
        assert SETTLING[call]("orders", "a", token) is DONE


@pytest.mark.parametrize("url", [None, URL])
@pytest.mark.parametrize("state", JobState)
def test_j3_a_job_can_be_deleted_in_every_state(state: JobState, url: str | None) -> None:
    prepare: dict[JobState, Callable[[], object]] = {
        JobState.DELAYED: partial(add, delay=60, url=url),
        JobState.READY: partial(add, url=url),
        JobState.RESERVED: partial(_reserve, url),
        JobState.DEAD: partial(_kill, url),
    }
    prepare[state]()
    assert found().state is state

    assert delete_job("orders", "a")
    assert find_job("orders", "a") is None
    assert not delete_job("orders", "a")
    assert not DeadLetter.objects.exists()


def _reserve(url: str | None) -> str:
    add(url=url)
    kind = f"orders|{Way.CALLBACK if url else Way.PULLED}"
    assert Message.objects.claim(kind, 1, "lease", 60_000)
    return "lease"


def _kill(url: str | None) -> None:
    assert bury_job("orders", "a", _reserve(url)) is DONE


def test_j3_a_deletion_takes_the_active_and_the_dead() -> None:
    _kill(None)
    add(if_exists="update")
    assert delete_job("orders", "a")
    assert not Message.objects.exists()
    assert not DeadLetter.objects.exists()


def test_j7_within_a_shard_jobs_are_popped_in_order_and_every_shard_has_its_turn() -> None:
    configure_topic("orders", shards=4)
    for n in range(80):
        add(str(n))
    shards = {shard: [n for n in range(80) if shard_of(str(n), 4) == shard] for shard in range(4)}

    for shard, expected in shards.items():
        jobs = pop_jobs("orders", 5, shard=shard)
        assert [int(each.job_id) for each in jobs] == expected[:5]
    firsts = {int(pop_jobs("orders")[0].job_id) % 80 for _ in range(40)}
    assert len({shard_of(str(n), 4) for n in firsts}) == 4


def test_j7_a_shard_that_there_is_not_is_refused() -> None:
    with pytest.raises(InvalidMessage, match="shards 0 to 0"):
        pop_jobs("orders", shard=1)


def test_j7_a_pop_of_many_goes_on_to_the_next_shards() -> None:
    configure_topic("orders", shards=8)
    for n in range(50):
        add(str(n))
    assert len(pop_jobs("orders", 30)) == 30
    assert len(pop_jobs("orders", 30)) == 20


def test_what_was_popped_for_nobody_is_given_back_uncounted() -> None:
    add()
    jobs = pop_jobs("orders")
    Pop("orders").give_back(jobs)
    assert (found().state, found().retry) == (JobState.READY, 0)
    assert popped().attempt == 1


def test_a_consumer_sleeps_until_the_next_job_of_any_shard_is_due() -> None:
    configure_topic("orders", shards=4)
    assert Pop("orders").next_in() == 3.0
    for n in range(8):
        add(str(n), delay=1 + n / 10)
    assert 0.5 < Pop("orders").next_in() <= 1.0


@pytest.mark.parametrize("url", [None, URL])
def test_a_paused_topic_hands_out_nothing_whichever_way(url: str | None) -> None:
    configure_topic("orders", shards=2)
    for n in range(10):
        add(str(n), url=url)
    assert pause_topic("orders")
    assert not pause_topic("orders")
    configure_topic("orders", shards=4)  # the new ones are paused too

    kinds = kinds_of_topic("orders", 4)
    assert [Message.objects.claim(kind, 10, "lease", 1) for kind in kinds] == [[]] * 5
    assert resume_topic("orders")
    assert not resume_topic("orders")
    assert sum(len(Message.objects.claim(kind, 10, "lease", 1)) for kind in kinds) == 10


def test_a_kicked_job_begins_anew() -> None:
    add(ladder="1h", body=7)
    for _ in range(2):
        release_job("orders", "a", popped().lease_token, delay=timedelta(0))
    assert found().state is JobState.DEAD

    assert kick_job("orders", "a") == 1
    job = popped()
    assert (job.attempt, job.body) == (1, 7)
    assert kick_job("orders", "a") == 0
    assert kick_job("orders", "b") is None
