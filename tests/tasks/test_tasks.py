"""Tasks from enqueueing to results, on a real worker and database (T1 to T6, T11, T12)."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.utils import timezone
from django.utils.log import RequireDebugTrue
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from delayed_queue.handlers import registry
from delayed_queue.models import DeadLetter, Message
from delayed_queue.observe.metrics import PrometheusInstrument
from delayed_queue.observe.tracing import OpenTelemetryInstrument
from delayed_queue.tasks._api import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    have_listeners,
    signals,
    task_backends,
)
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import TaskQueue
from tests.support.processes import wait_until
from tests.support.running import running
from tests.tasks.conftest import configured, drained, worker_of_tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


class TestRunning:
    def test_functions_run_in_threads_and_coroutines_on_the_event_loop(self, work: Any) -> None:
        results = [each.enqueue(1, other=2) for each in (work.add, work.aadd)]

        tally = drained()

        assert (tally.done, tally.lost) == (2, 0)
        for each in results:
            assert each.status == TaskResultStatus.READY
            each.refresh()
            assert (each.status, each.return_value) == (TaskResultStatus.SUCCESSFUL, 3)
        threads = {name.partition("-")[0] for _, _, name in work.said}
        assert threads == {"handler", "event"}

    def test_a_batch_of_both_kinds_is_settled_as_one(self, work: Any) -> None:
        results = [(work.add, work.aadd)[each % 2].enqueue(each) for each in range(200)]

        assert drained().done == 200
        for number, each in enumerate(results):
            each.refresh()
            assert each.return_value == number
        assert not Message.objects.exists()

    def test_a_result_says_when_and_where(self, work: Any) -> None:
        before = timezone.now() - timedelta(seconds=1)
        result = work.add.enqueue(1)
        drained(worker_id="here")

        found = work.add.get_result(result.id)

        assert found.worker_ids == ["here"]
        assert found.attempts == 1
        times = [found.enqueued_at, found.started_at, found.finished_at]
        assert times == sorted(times)
        assert before < times[0]
        assert found.last_attempted_at == found.started_at
        assert (found.args, found.kwargs, found.backend) == ([1], {}, "default")
        assert found.task == work.add
        assert found.errors == []

    def test_what_a_task_raises_is_its_result_and_a_dead_letter(self, work: Any) -> None:
        for each in (work.fail, work.afail):
            result = each.enqueue("why")
            drained()
            result.refresh()
            assert result.status == TaskResultStatus.FAILED
            assert result.is_finished
            (error,) = result.errors
            assert error.exception_class is ValueError
            assert "ValueError: why" in error.traceback
            with pytest.raises(ValueError, match="Task failed"):
                _ = result.return_value
        assert DeadLetter.objects.count() == 2

    def test_a_backslash_is_no_nul(self, work: Any) -> None:
        result = work.leave.enqueue("\\u0000")
        drained()
        result.refresh()
        assert result.return_value == "\\u0000"

    def test_the_signals_of_the_queue_are_what_they_answer(self, work: Any) -> None:
        snoozed, rejected = work.answer.enqueue("snooze"), None
        drained()
        snoozed.refresh()
        assert snoozed.status == TaskResultStatus.SUCCESSFUL
        assert snoozed.attempts == 1
        work.said.clear()
        rejected = work.answer.enqueue("reject")
        drained()
        rejected.refresh()
        assert rejected.status == TaskResultStatus.FAILED
        assert DeadLetter.objects.get().reason == "as asked"


class TestEnqueueing:
    def test_a_task_is_visible_at_the_commit_and_gone_with_a_rollback(self, work: Any) -> None:
        with transaction.atomic():
            kept = work.add.enqueue(1)
        with transaction.atomic():
            gone = work.add.enqueue(2)
            transaction.set_rollback(True)
        assert kept.task.get_backend().get_result(kept.id).status == TaskResultStatus.READY
        with pytest.raises(TaskResultDoesNotExist):
            work.add.get_result(gone.id)

    def test_a_coroutine_enqueues(self, work: Any) -> None:
        result = async_to_sync(work.aadd.aenqueue)(3)
        drained()
        async_to_sync(result.arefresh)()
        assert result.return_value == 3
        assert async_to_sync(work.aadd.aget_result)(result.id).return_value == 3

    def test_many_are_one_statement(self, work: Any, backend: Any) -> None:
        results = backend.enqueue_many(work.add, [(1, 2), {"one": 3}, 4])
        drained()
        for each in results:
            each.refresh()
        assert [each.return_value for each in results] == [3, 3, 4]
        assert [each.id for each in results[1:]] == [results[1].id, results[-1].id]

    def test_a_deferred_one_is_ready_until_its_time(self, work: Any) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = work.add.using(run_after=later).enqueue(1)
        assert drained().done == 0
        found = work.add.get_result(result.id)
        assert found.status == TaskResultStatus.READY
        assert abs(found.task.run_after - later) < timedelta(milliseconds=1)
        assert found.enqueued_at < later

    def test_without_time_zones(self, settings: Any, work: Any, backend: Any) -> None:
        settings.USE_TZ = False
        soon = datetime.now() + timedelta(hours=1)  # noqa: DTZ005
        ended, later = work.tell.enqueue(1), work.add.using(run_after=soon)
        waiting = [later.enqueue(1), *backend.enqueue_many(later, [2])]
        assert drained().done == 1
        assert work.tell.get_result(ended.id).status == TaskResultStatus.SUCCESSFUL
        for each in waiting:
            assert work.add.get_result(each.id).status == TaskResultStatus.READY


class TestResults:
    def test_unknown_ids_and_foreign_ones(self, work: Any) -> None:
        from delayed_queue.tasks._api import TaskResultMismatch

        for unknown in ("", "123", str(uuid.uuid4()), "x" * 36):
            with pytest.raises(TaskResultDoesNotExist):
                work.add.get_result(unknown)
        result = work.add.enqueue(1)
        with pytest.raises(TaskResultMismatch):
            work.fail.get_result(result.id)

    def test_a_task_that_imports_no_more_can_be_read_and_is_dead_until_mended(
        self, work: Any, backend: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = work.add.enqueue(1)
        found = work.add
        monkeypatch.delattr(work, "add")
        assert backend.get_result(result.id).status == TaskResultStatus.READY
        drained()
        lost = backend.get_result(result.id)
        assert lost.status == TaskResultStatus.FAILED
        assert lost.task.module_path == "tests.tasks.work.add"
        letter = DeadLetter.objects.get()
        assert "cannot be imported" in letter.reason

        monkeypatch.setattr(work, "add", found, raising=False)
        TaskQueue("default", 0, "default").redrive([letter.pk])
        assert backend.get_result(result.id).status == TaskResultStatus.READY
        drained()
        mended = backend.get_result(result.id)
        assert mended.return_value == 1
        assert len(mended.errors) == 1

    @pytest.mark.parametrize(
        ("payload", "reason"),
        [
            ({"task": "tests.tasks.work.thrice", "args": [1, 2, 3]}, "do not fit"),
            *(
                ({"task": f"tests.tasks.work.{task}", **said}, "do not fit")
                for task in ("thrice", "tell", "aadd")
                for said in ({"args": 5}, {"args": None}, {"kwargs": [1]}, {"kwargs": 1})
            ),
            (1, "not a task"), ({}, "not a task"), ({"task": 1}, "not a task"),
            ({"task": "a\x00b", "args": 1}, "cannot be imported"),
            ({"task": "x" * 9000}, "cannot be imported"),
        ],
    )  # fmt: skip
    def test_what_cannot_run_is_a_dead_letter_at_once(self, work, payload, reason):
        TaskQueue("default", 0, "default").offer_or_update("some key", payload)
        tally = drained()
        assert (tally.dead, tally.failed) == (1, 0)
        assert TaskResult.objects.get().status == "FAILED"
        assert reason in DeadLetter.objects.get().reason

    def test_none_are_written_where_none_are_wanted(self, settings: Any, work: Any) -> None:
        settings.TASKS = configured(RESULTS=None)
        assert not task_backends["default"].supports_get_result
        result = work.add.enqueue(1)
        work.fail.enqueue()
        drained()
        assert not TaskResult.objects.exists()
        with pytest.raises(NotImplementedError):
            work.add.get_result(result.id)


class TestSignals:
    def test_they_are_sent_as_django_sends_them(self, work: Any, backend: Any) -> None:
        seen: list[Any] = []

        def note(sender: Any, signal: Any, task_result: Any, **kwargs: Any) -> None:
            seen.append((signal, sender, task_result.status, task_result.id))

        sent = (signals.task_enqueued, signals.task_started, signals.task_finished)
        for each in sent:
            each.connect(note)
        try:
            ids = [each.enqueue(1).id for each in (work.add, work.aadd, work.fail, work.afail)]
            drained()
        finally:
            for each in sent:
                each.disconnect(note)
        for number, each in enumerate(ids):
            ends = [TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED][number // 2]
            states = [TaskResultStatus.READY, TaskResultStatus.RUNNING, ends]
            told = [entry[:3] for entry in seen if entry[3] == each]
            assert told == [
                (signal, type(backend), state) for signal, state in zip(sent, states, strict=True)
            ]

    @pytest.mark.parametrize("name", ["task_started", "task_finished"])
    def test_one_receiver_is_told_though_django_s_own_is_disconnected(self, work, name):
        signal, own = getattr(signals, name), getattr(signals, f"log_{name}")
        seen: list[Any] = []

        def note(sender: Any, task_result: Any, **kwargs: Any) -> None:
            seen.append(task_result.id)

        signal.disconnect(own)
        signal.connect(note)
        try:
            ids = [each.enqueue(1).id for each in (work.add, work.aadd)]
            drained()
        finally:
            signal.disconnect(note)
            signal.connect(own)
        assert sorted(seen) == ids

    @pytest.mark.parametrize(
        ("level", "is_debug", "propagates", "listens_to"),
        [
            # Django's default: its logger accepts records, its handler only with DEBUG.
            (logging.INFO, False, False, False),
            (logging.INFO, True, False, True),
            (logging.ERROR, True, False, False),
            (logging.ERROR, False, True, True),  # to the handler that captures records for tests
        ],
    )
    def test_a_log_that_drops_all_lines_does_not_listen(
        self, settings, monkeypatch, level, is_debug, propagates, listens_to
    ):
        settings.DEBUG = is_debug
        logger, handler = logging.Logger("tasks", logging.INFO), logging.NullHandler(level)
        handler.addFilter(RequireDebugTrue())
        logger.addHandler(handler)
        logger.parent, logger.propagate = logging.root, propagates
        monkeypatch.setattr(signals, "logger", logger)
        assert have_listeners() is listens_to


@pytest.mark.parametrize("priority", [[], {}, "high"])
def test_a_priority_that_is_no_number_is_ignored(work: Any, priority: Any) -> None:
    payload = {"task": "tests.tasks.work.add", "args": [1], "priority": priority}
    TaskQueue("default", 0, "default").offer_or_update("key", payload)
    assert drained().done == 1


class TestNames:
    """Metrics and logs name the tasks of a queue; other messages have no name."""

    @pytest.fixture
    def failed(self, work: Any) -> None:
        work.fail.enqueue()
        TaskQueue("default", 0, "default").offer_or_update("key", {"task": "no.such.task"})

    def test_metrics(self, work: Any, failed: None, settings: Any) -> None:
        registry = CollectorRegistry()
        settings.DELAYED_QUEUE = {"INSTRUMENTS": [PrometheusInstrument(registry)]}
        for each in (work.add, work.add, work.aadd):
            each.enqueue(1)
        drained()
        (found,) = (each for each in registry.collect() if each.name.endswith("duration_seconds"))
        counts = {
            (each.labels["handler"], each.labels["outcome"]): each.value
            for each in found.samples
            if each.name.endswith("_count")
        }
        assert counts == {
            ("tests.tasks.work.add", "done"): 2,
            ("tests.tasks.work.aadd", "done"): 1,
            ("tests.tasks.work.fail", "failed"): 1,
            ("", "failed"): 1,
        }

    def test_traces(self, failed: None, settings: Any) -> None:
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        instrument = OpenTelemetryInstrument(tracer_provider=provider)
        settings.DELAYED_QUEUE = {"INSTRUMENTS": [instrument]}
        drained()
        named = {
            each.name: (each.attributes or {}).get("code.function.name")
            for each in exporter.get_finished_spans()
        }
        path = "tests.tasks.work.fail"
        assert named == {f"handle {path}": path, "handle default": None}

    def test_lines_of_the_log(self, failed: None, caplog: pytest.LogCaptureFixture) -> None:
        drained()
        lines = [each for each in caplog.messages if each.startswith("event=dead ")]
        assert sorted("handler=tests.tasks.work.fail" in each for each in lines) == [False, True]


def test_the_app_costs_nothing_without_a_backend(settings: Any) -> None:
    assert "default" in registry
    settings.TASKS = {"default": {"BACKEND": "django_tasks.backends.dummy.DummyBackend"}}
    assert "default" not in registry


def test_who_was_replaced_meanwhile_leaves_no_result(work: Any, other: Any) -> None:
    """The row of a result is fenced by the lease, as the deletion is."""
    worker = worker_of_tasks()
    with running(worker):
        result = work.advance.enqueue()
        wait_until(lambda: work.said)
        other.execute(
            'UPDATE delayed_queue SET "lockUuid" = NULL, "scheduledAt" = "scheduledAt" + 3600000'
        )
        work.gate.set()
        wait_until(lambda: worker.counts.lost)
    assert work.advance.get_result(result.id).status == TaskResultStatus.READY
    assert not TaskResult.objects.exclude(status="").exists()


def test_results_wait_for_who_holds_their_message(work: Any, other: Any) -> None:
    """Another transaction that locks one message blocks its result, and no other's."""
    worker = worker_of_tasks()
    with running(worker):
        other.execute("BEGIN")
        held = work.advance.enqueue()
        wait_until(lambda: work.said)
        other.execute('SELECT 1 FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', [held.id])
        work.gate.set()
        free = work.add.enqueue(1)
        wait_until(lambda: work.add.get_result(free.id).is_finished)
        assert work.advance.get_result(held.id).status == TaskResultStatus.RUNNING
        other.execute("ROLLBACK")
        wait_until(lambda: work.advance.get_result(held.id).is_finished)
