"""What the foreign suites import of their own backends, as they find it here."""

from __future__ import annotations

import logging
import signal
import sys
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections, transaction
from django.test.runner import DiscoverRunner
from django.test.utils import iter_test_cases
from django.utils import timezone

from delayed_queue import DelayedQueue
from delayed_queue.handlers import registry
from delayed_queue.models import Message
from delayed_queue.tasks import DelayedQueueBackend
from delayed_queue.tasks._api import signals, task_backends
from delayed_queue.tasks.ids import id_at
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.testing import ImmediateBackend  # noqa: F401 - for the suites
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions

DatabaseBackend = DelayedQueueBackend


class DummyBackend(DelayedQueueBackend):
    """Django's dummy backend has a list of what was enqueued; here that is read from the store."""

    def clear(self) -> None:
        Message.objects.all().delete()

    @property
    def results(self) -> list[Any]:
        # Tests look from the event loop, too, where there is no database to be asked.
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self._stored).result()

    def _stored(self) -> list[Any]:
        try:
            keys = Message.objects.order_by("pk").values_list("key", flat=True)
            return [self.get_result(each) for each in keys]
        finally:
            connections.close_all()


# For the suite of django-tasks-db


class Stored:
    """A message that a test writes by itself, as a row of their model."""

    def __init__(self, args_kwargs: dict[str, Any], task_path: str, backend_name: str) -> None:
        self.id = id_at(int(timezone.now().timestamp() * 1000))
        payload = {"task": task_path, "backend": backend_name} | args_kwargs
        DelayedQueue("default").offer_or_update(self.id, payload)

    def refresh_from_db(self) -> None:
        result = task_backends["default"].get_result(self.id)
        self.status = result.status
        self.traceback = "".join(each.traceback for each in result.errors)


class Rows:
    """What they ask of their one table, of messages and of results."""

    create = Stored

    def ready(self) -> Any:
        return Message.objects.filter(scheduled_at__lte=timezone.now())

    def successful(self) -> Any:
        return TaskResult.objects.filter(status="SUCCESSFUL")

    def failed(self) -> Any:
        return TaskResult.objects.filter(status="FAILED")

    def count(self) -> int:
        return Message.objects.count() + TaskResult.objects.count()

    def get(self, id: str) -> Any:  # noqa: A002
        return task_backends["default"].get_result(id)

    def all(self) -> Any:
        return Done()

    def filter(self, id: str) -> Any:  # noqa: A002
        return Due(id)

    def select_for_update(self) -> Any:
        return Message.objects.select_for_update()

    def values(self, name: str) -> Any:
        return Message.objects.values(name)


class Done:
    """Where they write a result into their table, the task is run."""

    def update(self, **changes: Any) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run_worker, "default").result()

    async def aupdate(self, **changes: Any) -> None:
        self.update(**changes)


class Due:
    def __init__(self, key: str) -> None:
        self.key = key

    def update(self, run_after: Any) -> None:
        Message.objects.filter(key=self.key).update(scheduled_at=run_after)


class DBTaskResult:
    objects = Rows()


def exclusive_transaction() -> Any:
    return transaction.atomic()


def run_worker(*queues: str, **options: Any) -> None:
    """Run a worker of ours until nothing is due, in the place of ``db_worker --batch``."""
    try:
        Worker(WorkerOptions(queues=queues, burst=True, cron=False, **options), registry).run()
    finally:
        connections.close_all()


# Parts of the names of tests that do not apply, and why.
_MODEL = "their model, its columns and its order"
_OPTION = "an option of their command, or of their backend, that ours has not"
_PRUNE = "results are dropped by the day, not by a command"
EXCUSED = {
    "ImmediateBackendTestCase.test_cannot_": "ours can",
    "DummyBackendTestCase.test_check": "a worker has to know its queues: E011",
    "DummyBackendTestCase.test_refresh_result": "changes results in that backend's own list",
    ".TaskTestCase.test_refresh_result": "refresh() on the event loop: no query there",
    "DummyBackendTransactionTestCase.test_doesnt_wait": "seen from elsewhere, at the commit",
    "AdminTestCase": _MODEL,
    "CompatTestCase": _MODEL,
    "ConnectionExclusiveTranscationTestCase": "a helper for SQLite",
    "DBTaskResultOrderingTestCase": _MODEL,
    "DatabaseBackendPruneTaskResultsTestCase": _PRUNE,
    "DatabaseTaskResultTestCase": "locks of their model; see test_worker_with_locked_rows",
    "_id_function": _OPTION,
    "test_database_backend_app_missing": "the core's check says so (E012), and @task itself",
    "test_index_scan_for_ready": _MODEL,
    "DatabaseBackendTestCase.test_invalid_task_path": _MODEL,
    "DatabaseBackendTestCase.test_missing_task_path": _MODEL,
    "test_priority_range_check": _MODEL,
    "test_run_after_null_0016_migration": "a migration of theirs",
    "test_task_name": _MODEL,
    "test_doesnt_process_different_backend": _OPTION,
    "worker_id": _OPTION,
    "_interval": _OPTION,
    "test_exclude_queues_requires": _OPTION,
    "DatabaseBackendWorkerTestCase.test_incorrect_backend": _OPTION,
    "DatabaseBackendWorkerTestCase.test_unknown_backend": _OPTION,
    "test_negative_max_tasks": _OPTION,
    "test_run_after_priority": _MODEL,
    "test_verbose_logging": "lines that their command prints",
    "test_repeat_ctrl_c": "a task whose worker ended is run again, and has not failed",
}


class Runner(DiscoverRunner):
    """Run what applies, and say what does not."""

    def build_suite(self, *args: Any, **kwargs: Any) -> Any:
        tests = list(iter_test_cases(super().build_suite(*args, **kwargs)))
        excused = {
            each.id(): why for each in tests for part, why in EXCUSED.items() if part in each.id()
        }
        for name, why in excused.items():
            sys.stdout.write(f"Does not apply: {name}: {why}\n")
        applying = [each for each in tests if each.id() not in excused]
        sys.stdout.write(f"{len(tests)} tests, of which {len(applying)} apply\n")
        return self.test_suite(applying)


class Worked(BaseCommand):
    """``db_worker``, as far as its options have a meaning here."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--worker-id")
        parser.add_argument("--batch", action="store_true")
        parser.add_argument("--queue-name", default="default")
        parser.add_argument("--exclude-queues", default="")
        parser.add_argument("--max-tasks", type=int)
        parser.add_argument("--interval", type=float)
        parser.add_argument("--no-startup-delay", dest="startup_delay", action="store_false")

    def handle(self, *args: Any, **options: Any) -> None:
        declared = sorted(task_backends["default"].queues)
        named = declared if options["queue_name"] == "*" else options["queue_name"].split(",")
        queues = [each for each in named if each not in options["exclude_queues"].split(",")]
        if options["batch"]:
            run_worker(*queues, max_messages=options["max_tasks"])
            self.stdout.write("Ended gracefully.")
            return
        worker = Worker(WorkerOptions(queues=tuple(queues), cron=False), registry)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *received: worker.stop())
        worker.run()


def main() -> None:
    logging.getLogger(signals.logger.name).setLevel(logging.INFO)
    logging.basicConfig(stream=sys.stdout)
    Worked().run_from_argv(sys.argv)
