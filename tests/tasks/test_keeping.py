"""Progress, cancellation, and retention of results by the day (T4, T9, T10)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, connections, transaction

from delayed_queue.db.sql import TAKE_KEEPING
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks._api import TaskResultStatus
from delayed_queue.tasks.ids import id_at
from delayed_queue.tasks.keeping import keep_days
from delayed_queue.tasks.models import TaskResult
from tests.support.processes import wait_until
from tests.support.running import running
from tests.tasks.conftest import configured, drained, worker_of_tasks

pytestmark = pytest.mark.django_db(transaction=True)


class TestContext:
    def test_it_says_what_django_says(self, work: Any) -> None:
        result = work.tell.enqueue(1, 2)
        drained()
        result.refresh()
        assert result.return_value == {"attempt": 1, "id": result.id, "args": [1, 2]}

    def test_progress_can_be_read_while_it_runs_and_after(self, work: Any) -> None:
        with running(worker_of_tasks()):
            result = work.advance.enqueue()
            wait_until(lambda: work.advance.get_result(result.id).metadata)
            result.refresh()
            assert result.status == TaskResultStatus.RUNNING
            assert result.metadata == {"progress": 0.5, "message": "half"}
            assert result.started_at is not None
            assert result.attempts == 1
            work.gate.set()
            wait_until(lambda: work.advance.get_result(result.id).is_finished)
        result.refresh()
        assert result.return_value is True
        assert result.metadata["progress"] == 0.5


class TestCancelling:
    def test_one_that_waits_is_taken_away(self, work: Any, backend: Any) -> None:
        result = work.add.enqueue(1)
        assert backend.cancel(result.id)
        assert not Message.objects.exists()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class.__name__ == "Cancelled"
        assert not backend.cancel(result.id)

    @pytest.mark.parametrize("name", ["advance", "endless"])
    def test_one_that_runs_is_told(self, work: Any, backend: Any, name: str) -> None:
        with running(worker_of_tasks()):
            result = getattr(work, name).enqueue()
            wait_until(lambda: work.said)
            assert backend.cancel(result.id)
            wait_until(lambda: backend.get_result(result.id).is_finished)
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class.__name__ == "Cancelled"
        assert not Message.objects.exists()
        assert not DeadLetter.objects.exists()
        if name == "endless":
            assert work.said == ["begun", "ended"]


class TestDays:
    def partitions(self) -> set[str]:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT inhrelid::regclass::text FROM pg_inherits "
                "WHERE inhparent = 'delayed_queue_task_result'::regclass"
            )
            return {row[0].rpartition("_")[2] for row in cursor.fetchall()}

    @pytest.fixture(autouse=True)
    def without_days(self, backend: Any) -> None:
        with connection.cursor() as cursor:
            for name in self.partitions() - {"rest"}:
                cursor.execute(f"DROP TABLE delayed_queue_task_result_{name}")

    def result(self, at: datetime) -> str:
        ms = int(at.timestamp() * 1000)
        found = TaskResult.objects.create(
            id=UUID(id_at(ms)), task="a.b", backend="default", kind="default|json", payload=b"{}",
            enqueued_at=ms, scheduled_at=ms, finished_at=ms, status="SUCCESSFUL",
        )  # fmt: skip
        return str(found.pk)

    def test_they_are_made_ahead_and_dropped_when_over(self, settings: Any) -> None:
        settings.TASKS = configured(RESULTS="2d")
        now = datetime(2026, 3, 10, 12, tzinfo=UTC)
        kept, moved = self.result(now), self.result(now + timedelta(days=3))
        assert keep_days("default", now)
        assert self.partitions() == {"rest", *(f"202603{each:02}" for each in range(9, 17))}
        assert keep_days("default", now)

        assert keep_days("default", now + timedelta(days=2))
        assert "20260310" in self.partitions()
        assert keep_days("default", now + timedelta(days=3))
        assert "20260310" not in self.partitions()
        assert not TaskResult.objects.filter(pk=kept).exists()
        assert TaskResult.objects.filter(pk=moved).exists()

    def test_tasks_are_run_whether_their_day_is_there_or_not(self, work: Any) -> None:
        assert keep_days("default")
        results = [work.thrice.enqueue(2), work.add.enqueue(1)]
        drained()
        for each in results:
            each.refresh()
            assert each.status == TaskResultStatus.SUCCESSFUL
            work.said.clear()

    def test_one_worker_at_a_time(self, other: Any) -> None:
        with other.transaction():
            other.execute(TAKE_KEEPING, {"table": "delayed_queue_task_result", "now": None})
            assert not keep_days("default")
        assert keep_days("default")

    def test_what_has_no_day_is_deleted_when_over(self) -> None:
        old = self.result(datetime.now(UTC) - timedelta(days=30))
        assert keep_days("default")
        assert not TaskResult.objects.filter(pk=old).exists()

    def test_who_may_make_no_days_still_deletes_what_is_over(self) -> None:
        """Without the right to create tables everything stays in the default partition."""
        old = self.result(datetime.now(UTC) - timedelta(days=30))
        with connection.cursor() as cursor:
            cursor.execute("CREATE ROLE no_days")
            cursor.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO no_days")
            cursor.execute("SET ROLE no_days")
            try:
                assert not keep_days("default")
            finally:
                cursor.execute("RESET ROLE")
                cursor.execute("DROP OWNED BY no_days")
                cursor.execute("DROP ROLE no_days")
        assert self.partitions() == {"rest"}
        assert not TaskResult.objects.filter(pk=old).exists()

    def test_who_writes_while_a_day_is_made_waits_and_is_not_refused(self, work, other):
        """A reader blocks the maker, which blocks the writer, until the reader ends."""
        results = [work.add.enqueue(each) for each in range(3)]
        with other.transaction():
            other.execute("SELECT count(*) FROM delayed_queue_task_result_rest")
            maker = threading.Thread(target=keep_in_thread)
            maker.start()
            wait_until(lambda: waiting(other) >= 1)
            writer = threading.Thread(target=drained)
            writer.start()
            wait_until(lambda: waiting(other) >= 2 or not maker.is_alive())
        maker.join(20)
        writer.join(20)
        for each in results:
            assert work.add.get_result(each.id).status == TaskResultStatus.SUCCESSFUL

    def test_who_reads_while_a_day_is_made_finds_what_is_moved_into_it(self, other: Any) -> None:
        moved = self.result(datetime.now(UTC))
        found: list[bool] = []
        reader = threading.Thread(target=look_for, args=(moved, found))
        with transaction.atomic():
            assert keep_days("default")
            reader.start()
            wait_until(lambda: waiting(other))
        reader.join(20)
        assert found == [True]


def look_for(task_id: str, found: list[bool]) -> None:
    try:
        found.append(TaskResult.objects.filter(pk=task_id).exists())
    finally:
        connections.close_all()


def keep_in_thread() -> None:
    try:
        keep_days("default")
    finally:
        connections.close_all()


def waiting(observer: Any) -> int:
    found: int = observer.execute(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())"
    ).fetchone()[0]
    return found
