"""The longest-running handler, from its thread to each place that reports it (O18)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from delayed_queue import DelayedQueue, Envelope, RetryPolicy
from delayed_queue.models import Worker
from delayed_queue.observe.metrics import QueueCollector
from delayed_queue.worker.engine.running import SlowLog
from delayed_queue.worker.engine.worker import Worker as Process
from tests.admin.support import page
from tests.support.factories import worker_row
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

HUNG = {"queue": "mail", "key": "k-1", "thread": "handler-3", "seconds": 1620.0, "is_slow": True}


@contextmanager
def hanging(count: int = 1, *, is_async: bool = False, **options: Any) -> Iterator[Process]:
    """Run a worker of two threads whose handlers wait for the end of the block."""
    begun, go_on = threading.Semaphore(0), threading.Event()

    def hang(envelope: Envelope) -> None:
        begun.release()
        assert go_on.wait(60)

    async def ahang(envelope: Envelope) -> None:
        await asyncio.to_thread(hang, envelope)

    handler = handler_of("mail", ahang if is_async else hang, **options)
    worker = worker_with(handler, concurrency=2, shutdown_timeout=timedelta(seconds=20))
    for number in range(count):
        DelayedQueue("mail").offer_or_update(f"k-{number}", 1)
    with running(worker):
        try:
            assert all(begun.acquire(timeout=20) for _ in range(count))
            yield worker
        finally:
            go_on.set()


@pytest.mark.parametrize(
    ("options", "thread", "busy"),
    [
        ({}, "handler-", {"mail": 1}),
        ({"transactional": True}, "handler-", {"mail": 1}),
        ({"is_async": True}, "event-loop", {}),
    ],
    ids=["thread", "transaction", "coroutine"],
)
def test_o18_the_heartbeat_carries_it(options, thread, busy, settings):
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "HANDLER_SLOW": None}
    with hanging(**options) as worker:
        row = worker.describe().columns()
    assert (row["running"]["queue"], row["running"]["key"]) == ("mail", "k-0")
    assert row["running"]["thread"].startswith(thread)
    assert row["running"]["seconds"] >= 0
    assert (row["busy"], row["threads"], row["slow"]) == (busy, 2, 0)


def test_o18_the_one_that_began_first_is_the_longest() -> None:
    with hanging(2) as worker:
        found = worker.describe().load.in_threads
        row = worker.describe().columns()
    first = min(found, key=lambda each: each.began_at)
    assert row["running"]["key"] == first.envelope.key
    assert row["busy"] == {"mail": 2}


def test_o18_a_thread_abandoned_after_a_timeout_counts_as_busy() -> None:
    options: dict[str, Any] = {"timeout": timedelta(milliseconds=50), "retry": RetryPolicy.never()}
    with hanging(**options) as worker:
        wait_until(lambda: worker.counts.dead == 1)
        row = worker.describe().columns()
        assert row["running"]["key"] == "k-0"
        assert row["running"]["is_slow"]
        assert (row["busy"], row["threads"], row["slow"]) == ({"mail": 1}, 3, 1)
    assert worker.describe().columns()["busy"] == {}


def test_o18_nothing_runs_after_the_last_message() -> None:
    with hanging() as worker:
        pass
    row = worker.describe().columns()
    assert (row["running"], row["busy"], row["slow"]) == ({}, {}, 0)


@pytest.mark.parametrize(
    ("timeout", "setting", "is_slow"),
    [
        (None, timedelta(seconds=60), True),
        (None, timedelta(seconds=600), False),
        (None, None, False),
        (60.0, timedelta(seconds=600), True),
        (600.0, timedelta(seconds=60), False),
    ],
)
def test_o18_a_handlers_own_timeout_replaces_the_setting(timeout, setting, is_slow, settings):
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "HANDLER_SLOW": setting}
    with hanging() as worker:
        (found,) = worker.describe().load.in_threads
    older = found._replace(began_at=found.began_at - 120, timeout=timeout)
    assert older.is_slow is is_slow


def test_o18_a_slow_handler_is_logged_once(caplog, settings):
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "HANDLER_SLOW": timedelta(seconds=60)}
    with hanging(2) as worker:
        first, second = worker.describe().load.in_threads
    slow, log = first._replace(began_at=first.began_at - 120), SlowLog()
    with caplog.at_level(logging.WARNING, "delayed_queue"):
        for _ in range(3):
            log.look([slow, second])
    lines = [each for each in caplog.messages if "handler_slow" in each]
    assert lines == [
        f"event=handler_slow queue=mail key={slow.envelope.key} thread={slow.thread} seconds=120"
    ]


# Where operators see it


def health(*arguments: str) -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command("queuehealth", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def hung() -> Worker:
    worker_row("idle")
    worker_row("silent", silent_for=60, running=HUNG, slow=1)
    return worker_row("web-1", running=HUNG, slow=1, busy={"mail": 1}, threads=8)


@pytest.mark.usefixtures("hung")
def test_o18_a_probe_finds_it() -> None:
    (head, line) = health("--max-running", "10m").splitlines()
    assert head == "unhealthy"
    assert line.startswith("mail: the handler of 'k-1' has run for 0:27:0")
    assert line.endswith(" in handler-3 of web-1 on host; at most 0:10:00 is allowed")
    assert health("--max-running", "1h") == "healthy\n"
    assert health() == "healthy\n"


def test_o18_a_probe_of_another_queue_does_not(hung: Worker) -> None:
    DelayedQueue("bills").offer_or_update("k", 1)
    assert health("--queue", "bills", "--max-running", "10m") == "healthy\n"


@pytest.mark.usefixtures("hung")
def test_o18_a_metric_has_its_age() -> None:
    found = {each.name: each.samples for each in QueueCollector().collect()}
    (sample,) = found["delayed_queue_handler_running_seconds"]
    assert sample.labels == {"queue": "mail"}
    assert sample.value >= 1620


def test_o18_the_overview_names_it_in_title_and_text(admin_client: Client, hung: Worker) -> None:
    html = page(admin_client, "/admin/delayed_queue/queueoverview/")
    assert "<h1>1 handler slow, 1 worker silent</h1>" in html
    assert "A handler of mail has run for 27 min" in html
    assert "/admin/delayed_queue/message/?q=key:k-1" in html
    assert f"/admin/delayed_queue/worker/{hung.pk}/change/" in html


@pytest.mark.parametrize("where", ["?state=slow", "{pk}/change/"])
def test_o18_the_pages_of_workers_show_it(admin_client: Client, hung: Worker, where: str) -> None:
    html = page(admin_client, f"/admin/delayed_queue/worker/{where.format(pk=hung.pk)}")
    for words in ("27 min", "handler-3", "/admin/delayed_queue/message/?q=k-1", "1 / 8"):
        assert words in html
    assert "for 1 min" not in html
