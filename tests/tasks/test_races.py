"""Tasks that end, start, are cancelled or replaced at one moment (T4, T8, T10)."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import transaction
from django.utils import timezone

from delayed_queue.messages import Envelope
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.store.claim import CLAIM, NO_FLOOR
from delayed_queue.tasks._api import TaskResultStatus
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import TaskQueue
from delayed_queue.tasks.store import CANCEL, Attempt, acknowledging, cancelled_among
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.tasks.conftest import drained

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]
Connection = psycopg.Connection[Any]
HOUR_MS = 3_600_000


def begun() -> Envelope:
    """Return the only task, leased as by a worker that runs it."""
    envelope = TaskQueue("default", 0, "default").try_poll()
    assert envelope is not None
    return envelope


def finish(connection: Connection, result: Any, run: Envelope, value: str = "1") -> int:
    """Write over the connection as a worker does for a finished run; return the row count."""
    now = time.monotonic()
    attempt = Attempt(
        run.message_id,
        run.lease_id,
        result.id,
        (result.task.module_path, "default"),
        now,
        now,
        value,
    )
    step = acknowledging([run.message_id], [run.lease_id], [attempt], f'["{run.lease_id}"]')
    return len(connection.execute(*step).fetchall())


def lease(connection: Connection, at: int = 0) -> None:
    """Lease the only task over the connection, as if ``at`` milliseconds later."""
    now = int(timezone.now().timestamp() * 1000) + at
    params = {
        "kind": "default|json", "limit": 1, "lease_id": "theirs", "retaken_id": "theirs",
        "lease": HOUR_MS, "floor": NO_FLOOR, "floor_id": 0, "now": now,
    }  # fmt: skip
    assert len(connection.execute(CLAIM, params).fetchall()) == 1


def cancel(connection: Connection, result: Any, run: Envelope) -> None:
    message = Message.objects.get(id=run.message_id)
    params = {
        "message": message.id, "created_at": int(message.created_at.timestamp() * 1000),
        "id": result.id, "task": result.task.module_path, "backend": "default", "errors": "[]",
        "now": None,
    }  # fmt: skip
    assert [row[0] for row in connection.execute(CANCEL, params).fetchall()] == [False]


class TestUnique:
    def test_one_that_is_about_to_end_lives_until_it_has(self, work: Any, other: Any) -> None:
        first = work.once.enqueue("a", 1)
        other.execute("BEGIN")
        assert finish(other, first, begun()) == 1
        assert work.once.enqueue("a", 2).id == first.id
        other.execute("COMMIT")

        again = work.once.enqueue("a", 3)
        assert again.id != first.id
        drained()
        assert work.said == [("a", 3)]
        assert work.once.get_result(first.id).return_value == 1

    def test_one_that_takes_the_place_of_one_that_ends_runs_behind_it(self, work, other, admin):
        first = work.latest.enqueue("a", value=1)
        other.execute("BEGIN")
        finish(other, first, begun())
        with calling(lambda: work.latest.enqueue("a", value=2)) as call:
            wait_until_blocked(admin, call)
            other.execute("COMMIT")
            second = call.answer()
        assert work.latest.get_result(second.id).status == TaskResultStatus.READY
        drained()
        assert work.said == [("a", 2)]
        assert work.latest.get_result(second.id).return_value == 2

    def test_of_one_that_runs_and_is_replaced_the_result_is_the_new_one_s(self, work, other):
        first = work.latest.enqueue("a", value=1)
        run = begun()
        assert work.latest.enqueue("a", value=2).id == first.id
        assert finish(other, first, run) == 0
        assert work.latest.get_result(first.id).status == TaskResultStatus.READY
        drained()
        assert work.latest.get_result(first.id).return_value == 2

    def test_one_that_takes_the_place_of_a_cancelled_one_is_not_cancelled(self, work, other):
        first = work.latest.enqueue("a", value=1)
        cancel(other, first, begun())
        work.latest.enqueue("a", value=2)
        assert not cancelled_among([first.id])

    def test_of_many_at_once_one_lives(self, work: Any) -> None:
        found = together([lambda: work.once.enqueue("a", 1).id] * 4)
        assert len(set(found)) == 1
        assert Message.objects.count() == 1


class TestCancelling:
    @pytest.mark.parametrize(("end", "is_there"), [("COMMIT", True), ("ROLLBACK", False)])
    def test_one_that_is_about_to_start_is_told_if_it_does(
        self, work: Any, backend: Any, other: Any, admin: Any, end: str, is_there: bool
    ) -> None:
        result = work.add.enqueue(1)
        other.execute("BEGIN")
        lease(other)
        with calling(lambda: backend.cancel(result.id)) as call:
            wait_until_blocked(admin, call)
            other.execute(end)
            assert call.answer()
        assert Message.objects.exists() is is_there
        result.refresh()
        found = cancelled_among([result.id])
        if is_there:
            assert (result.status, found) == (TaskResultStatus.RUNNING, {result.id})
        else:
            assert result.status == TaskResultStatus.FAILED

    def test_one_that_is_about_to_end_has_ended(self, work, backend, other, admin):
        result = work.add.enqueue(1)
        other.execute("BEGIN")
        finish(other, result, begun())
        with calling(lambda: backend.cancel(result.id)) as call:
            wait_until_blocked(admin, call)
            other.execute("COMMIT")
            assert not call.answer()
        found = backend.get_result(result.id)
        assert (found.status, found.return_value) == (TaskResultStatus.SUCCESSFUL, 1)

    def test_the_end_waits_for_who_cancels_and_is_true(self, work, backend, other, admin):
        """A finished task cannot be cancelled; a redrive finds no message of it."""
        result = work.add.enqueue(1)
        run = begun()
        other.execute("BEGIN")
        cancel(other, result, run)
        with calling(lambda: finish(connection(), result, run)) as call:
            wait_until_blocked(admin, call)
            other.execute("COMMIT")
            assert call.answer() == 1
        found = backend.get_result(result.id)
        assert (found.status, found.return_value, found.attempts) == ("SUCCESSFUL", 1, 1)
        assert not cancelled_among([result.id])


class TestTakenOver:
    def test_of_two_workers_the_one_that_lost_its_lease_writes_nothing(self, work, other):
        result = work.add.enqueue(1)
        run = begun()
        lease(other, at=HOUR_MS)
        assert finish(other, result, run, "7") == 0
        assert not TaskResult.objects.exists()
        run.lease_id = "theirs"
        assert finish(other, result, run, "8") == 1
        found = work.add.get_result(result.id)
        assert (found.return_value, found.worker_ids) == (8, ["", "theirs"])

    def test_of_many_that_end_one_at_once_one_does(self, work: Any) -> None:
        result = work.add.enqueue(1)
        run = begun()
        found = together([lambda: finish(connection(), result, run)] * 4)
        assert sorted(found) == [0, 0, 0, 1]
        assert TaskResult.objects.get().worker_ids == [run.lease_id]


class TestReading:
    def test_a_result_that_is_being_written_is_the_old_or_the_new_one(self, work, other):
        result = work.add.enqueue(1)
        run = begun()
        other.execute("BEGIN")
        finish(other, result, run)
        result.refresh()
        assert result.status == TaskResultStatus.RUNNING
        other.execute("COMMIT")
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL

    def test_one_that_is_being_redriven_is_failed_until_it_is_ready(self, work, backend):
        result = work.fail.enqueue()
        drained()
        with transaction.atomic():
            TaskQueue("default", 0, "default").redrive([DeadLetter.objects.get().pk])
            with calling(lambda: backend.get_result(result.id).status) as call:
                assert call.answer() == TaskResultStatus.FAILED
        assert backend.get_result(result.id).status == TaskResultStatus.READY

    def test_one_that_is_read_without_end_while_others_end_is_never_gone(self, work, backend):
        """At each moment either the message or the row exists."""
        results = [work.add.enqueue(each) for each in range(30)]
        until = time.monotonic() + timedelta(seconds=20).total_seconds()

        def read() -> int:
            seen = {each.id: TaskResultStatus.READY for each in results}
            while set(seen.values()) != {TaskResultStatus.SUCCESSFUL}:
                assert time.monotonic() < until
                seen = {each: backend.get_result(each).status for each in seen}
            return len(seen)

        with calling(read) as call:
            drained(batch_size=3)
            assert call.answer() == len(results)


def connection() -> Connection:
    """Return psycopg's connection of this thread."""
    from django.db import connection as found

    found.ensure_connection()
    raw: Connection = found.connection
    return raw
