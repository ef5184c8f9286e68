"""Through how many files of the package one message goes, on each of its ways (architecture.md)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.conf import LazySettings
from django.test import Client

from delayed_queue import CronSchedule, DelayedQueue
from delayed_queue.cron.keeper import CronEntry, CronKeeper
from delayed_queue.http.tokens import VERBS, create_token
from delayed_queue.models import Message, Schedule
from delayed_queue.worker.engine.worker import Worker
from tests.http.callbacks.delivering import add, callback_worker
from tests.http.callbacks.servers import Receiver
from tests.spark.support import job, offer, rows
from tests.support import documents, metrics
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("fresh", "as_installed"),
]


class Tracer:
    """Notes the files of the package whose functions are entered while it is on."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.is_on = False

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self.files.add(frame.f_code.co_filename)

    @contextmanager
    def watching_threads(self) -> Iterator[None]:
        """Watch the threads that are begun inside, and not this one."""
        threading.setprofile(self)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def on(self) -> Iterator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False

    def fewest(self, path: Callable[[], object]) -> int:
        """Return the fewest of ten times: now and then something is looked up anew meanwhile."""
        counts = []
        for _ in range(10):
            self.files.clear()
            with self.on():
                path()
            counts.append(len(self.files))
        return min(counts)

    def files_of(self, path: Callable[[], object]) -> int:
        """Return how many files are entered; the first time nothing counts: modules are loaded."""
        path()
        sys.setprofile(self)
        try:
            return self.fewest(path)
        finally:
            sys.setprofile(None)


PACKAGE = str(metrics.PACKAGE)


@pytest.fixture
def as_installed(settings: LazySettings, no_other_receivers: None) -> None:
    """Nothing watches, and nothing is kept of other tests' settings."""
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "INSTRUMENTS": []}


@pytest.fixture
def tracer() -> Tracer:
    return Tracer()


def test_an_offer(tracer: Tracer) -> None:
    orders = DelayedQueue("orders")
    assert tracer.files_of(lambda: orders.offer_or_update("a", 1)) == figure("an offer")


def test_a_message_in_a_running_worker(tracer: Tracer) -> None:
    worker = worker_with(handler_of("orders", lambda envelope: None), poll_interval=HOUR)
    orders = DelayedQueue("orders")
    with tracer.watching_threads(), running(worker):
        one(worker, lambda: orders.offer_or_update("a", 1))
        files = tracer.fewest(lambda: one(worker, lambda: orders.offer_or_update("b", 1)))
    assert files == figure("a message in a running worker")


def test_a_job_posted(tracer: Tracer) -> None:
    token = create_token("tests", verbs=VERBS, topics=["orders"])
    client = Client(headers={"Authorization": f"Bearer {token}"})
    ids = map(str, count())

    def post() -> None:
        job = {"jobId": next(ids), "topic": "orders", "body": {"n": 1}}
        response = client.post("/queue/v1/jobs", job, content_type="application/json")
        assert response.status_code < 300, response.content

    assert tracer.files_of(post) == figure("a `job` posted")


def test_a_schedule_installed(tracer: Tracer) -> None:
    entry = CronEntry("orders", "hourly", CronSchedule("0 * * * *", timezone="UTC"), payload=1)

    def install() -> None:
        Message.objects.all().delete()
        Schedule.objects.all().delete()
        assert [each.error for each in CronKeeper(entries=[entry]).check()] == [""]

    assert tracer.files_of(install) == figure("a schedule installed")


def test_a_message_that_spark_offers(tracer: Tracer, known: str) -> None:
    jobs = (job(f"job-{number}", now=0) for number in count())
    files = tracer.files_of(lambda: offer(next(jobs), [rows(["a"])]))
    assert files == figure("a message that Spark offers")
    assert Message.objects.exists()


def test_a_callback(tracer: Tracer, receiver: Receiver) -> None:
    worker = callback_worker(poll_interval=HOUR)
    with tracer.watching_threads(), running(worker):
        one(worker, lambda: add("a", receiver.url))
        files = tracer.fewest(lambda: one(worker, lambda: add("b", receiver.url)))
    assert files == figure("a callback")


def one(worker: Worker, offer: Callable[[], object]) -> None:
    """Offer a message and wait until it is settled."""
    done = worker.counts.done
    offer()
    wait_until(lambda: worker.counts.done > done and not Message.objects.exists())


HOUR = timedelta(hours=1)


def figure(path: str) -> int:
    """Return what the page says; nothing but a change of the code changes it."""
    rows = documents.table(documents.DOCS / "architecture.md", "path", "files")
    return int({row[0]: row[1] for row in rows}[path])
