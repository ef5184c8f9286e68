"""Callers that end, add and close the jobs of one batch at the same moment (B7, B8, B9)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

import psycopg
import pytest
from django.db import transaction

from delayed_queue import DelayedQueue
from delayed_queue.http.jobs.adding import delete_job
from delayed_queue.http.jobs.batches import close_batch, open_batch
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.http.jobs.consuming import bury_job, finish_job
from delayed_queue.http.jobs.jobs import AddedJob, Answer
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import StoredBatch
from tests.http.jobs.support import add, pop_jobs
from tests.support.concurrency import calling, together, wait_until_blocked

ROUNDS: Final = 15
T = TypeVar("T")
End = Callable[[str, str], Any]


def opened() -> int:
    return open_batch(job_from({"topic": "reports", "jobId": "then", "body": 1}))


def counts() -> dict[str, int]:
    """Return the counts of the one ``then``, and delete it."""
    reports = DelayedQueue("reports")
    stored = reports.read("then")
    assert stored is not None, "then was not added"
    assert not StoredBatch.objects.exists()
    assert reports.drop_message("then")
    return {
        name: value for name, value in stored.headers["batch"].items() if value and name != "id"
    }


def finish(job_id: str, token: str) -> Any:
    return finish_job("orders", job_id, token)


def bury(job_id: str, token: str) -> Any:
    return bury_job("orders", job_id, token)


def delete(job_id: str, token: str) -> Any:
    return delete_job("orders", job_id)


def behind(admin: psycopg.Connection[Any], hold: Callable[[], Any], call: Callable[[], T]) -> T:
    """Return the result of a call that waits until the transaction of ``hold`` commits."""
    with ExitStack() as stack:
        with transaction.atomic():
            hold()
            started = stack.enter_context(calling(call))
            wait_until_blocked(admin, started)
        return started.answer()


@pytest.mark.usefixtures("queue")
class TestTwoLastJobs:
    @pytest.mark.parametrize(
        ("first", "second", "outcomes"),
        [
            (finish, finish, {"done": 2}), (finish, bury, {"done": 1, "dead": 1}),
            (finish, delete, {"done": 1, "dropped": 1}), (delete, delete, {"dropped": 2}),
        ],
    )  # fmt: skip
    def test_b7_together_they_add_one_then(self, first: End, second: End, outcomes: dict[str, int]):
        for turn in range(ROUNDS):
            batch = opened()
            for key in ("a", "b"):
                add(f"{key}{turn}", batch=batch)
            close_batch(batch)
            ends = zip((first, second), pop_jobs("orders", 2), strict=True)
            together([partial(end, job.job_id, job.lease_token) for end, job in ends])
            assert counts() == {"total": 2, **outcomes}

    def test_b7_the_second_waits_and_adds_then(self, admin: psycopg.Connection[Any]):
        batch = opened()
        add("a", batch=batch)
        add("b", batch=batch)
        close_batch(batch)
        first, second = pop_jobs("orders", 2)
        calls = [partial(finish, each.job_id, each.lease_token) for each in (first, second)]
        assert behind(admin, *calls) is Answer.DONE
        assert counts() == {"total": 2, "done": 2}

    def test_b7_a_deletion_and_a_finish_of_one_job_count_once(self):
        for _ in range(ROUNDS):
            batch = opened()
            add("a", batch=batch)
            close_batch(batch)
            (job,) = pop_jobs("orders")
            together([partial(end, "a", job.lease_token) for end in (finish, delete)])
            assert counts()["total"] == 1


@pytest.mark.usefixtures("queue")
class TestJoining:
    def test_b9_close_waits_for_a_job_that_joins(self, admin: psycopg.Connection[Any]):
        batch = opened()
        configure_topic("orders")
        assert behind(admin, partial(add, "a", batch=batch), partial(close_batch, batch))
        assert DelayedQueue("reports").read("then") is None
        assert delete_job("orders", "a")
        assert counts() == {"total": 1, "dropped": 1}

    def test_b9_a_job_that_waits_for_close_is_refused(self, admin: psycopg.Connection[Any]):
        batch = opened()
        configure_topic("orders")
        added: AddedJob = behind(admin, partial(close_batch, batch), partial(add, "a", batch=batch))
        assert (added.outcome, added.is_batch_closed) == (None, True)
        assert counts() == {}
        assert pop_jobs("orders") == []

    def test_b9_jobs_and_close_lose_no_member(self):
        configure_topic("orders")
        for _ in range(ROUNDS):
            batch = opened()
            adds = [partial(add, key, batch=batch) for key in ("a", "b")]
            calls: list[Callable[[], Any]] = [*adds, partial(close_batch, batch)]
            added = together(calls)[:2]
            joined = [each.job_id for each in added if each.outcome is not None]
            for job_id in joined:
                assert delete_job("orders", job_id)
            assert counts().get("total", 0) == len(joined)

    def test_b9_several_callers_fill_one_batch(self):
        configure_topic("orders")
        batch = opened()
        together([partial(add, f"j{n}", batch=batch) for n in range(8)])
        close_batch(batch)
        for job in pop_jobs("orders", 8):
            finish(job.job_id, job.lease_token)
        assert counts() == {"total": 8, "done": 8}
