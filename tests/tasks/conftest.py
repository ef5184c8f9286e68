"""Backends of tasks for a test, and workers that serve them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delayed_queue.handlers import registry
from delayed_queue.tasks._api import task_backends
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.running import SOON

BACKEND = "delayed_queue.tasks.DelayedQueueBackend"
QUEUES = ["default", "second"]


def configured(**options: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": BACKEND, "QUEUES": QUEUES, "OPTIONS": options}}


@pytest.fixture(autouse=True)
def backend(settings: Any) -> Any:
    """A backend that keeps results for a week."""
    settings.TASKS = configured()
    return task_backends["default"]


@pytest.fixture
def work(backend: Any) -> Iterator[Any]:
    """Fresh tasks of the tests; the fixture releases waiting ones at the end."""
    from tests.tasks import work

    work.said.clear()
    work.gate.clear()
    yield work
    work.gate.set()


def worker_of_tasks(**options: Any) -> Worker:
    options = {"queues": tuple(QUEUES), "poll_interval": SOON, "cron": False, **options}
    return Worker(WorkerOptions(**options), registry)


def drained(**options: Any) -> Any:
    """Run all due tasks; return the worker's counters."""
    return worker_of_tasks(burst=True, **options).run()
