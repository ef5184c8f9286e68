"""Workers that send callbacks to loopback, and helpers for their outcomes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from django.test import override_settings

from delayed_queue.handlers import Registry, Source
from delayed_queue.http.callbacks.delivery import handlers_of_topics
from delayed_queue.http.jobs.adding import add_job, add_jobs
from delayed_queue.http.jobs.kinds import WAKE_CHANNEL
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.http.callbacks.sending import reaching
from tests.http.callbacks.servers import Receiver
from tests.support.running import SOON

TOPIC: Final = "orders"


@contextmanager
def permitted(*receivers: Receiver, **more: Any) -> Iterator[None]:
    """Allow callbacks to these receivers, with time-outs for tests."""
    section = asdict(
        reaching(*receivers, **{"ENABLED": True, "TOTAL_TIMEOUT": timedelta(seconds=5), **more})
    )
    with override_settings(DELAYED_QUEUE={"CALLBACKS": section}):
        yield


def add(job_id: str, url: str, topic: str = TOPIC, **fields: Any) -> None:
    add_job(job_from({"jobId": job_id, "topic": topic, "url": url, "body": {"n": 1}, **fields}))


def add_many(prefix: str, count: int, url: str, topic: str = TOPIC, **fields: Any) -> None:
    """Add jobs whose urls end in their ids, in that order."""
    add_jobs([
        job_from({
            "jobId": f"{prefix}{n}", "topic": topic, "url": f"{url}/{prefix}{n}", "body": {"n": 1},
            **fields,
        })
        for n in range(count)
    ])  # fmt: skip


def callback_worker(**options: Any) -> Worker:
    registry = Registry()
    registry.add_source(Source("callbacks", handlers_of_topics, WAKE_CHANNEL))
    options = {
        "poll_interval": SOON, "cron": False, "shutdown_timeout": timedelta(seconds=5), **options
    }  # fmt: skip
    return Worker(WorkerOptions(**options), registry)


def send_due() -> Worker:
    """Send the due callbacks, and return the worker that did."""
    worker = callback_worker(burst=True)
    worker.run()
    return worker


def make_due() -> None:
    """Make all deferred messages due."""
    Message.objects.filter(lease_id=None).update(scheduled_at=1)
