"""A burst ends when nothing is due, even below its scan position (W9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Message
from delayed_queue.worker.engine.worker import Worker
from tests.support.concurrency import raw_connection
from tests.support.processes import wait_until
from tests.support.rivals import insert
from tests.support.running import handler_of, running, worker_with
from tests.worker.dynamic import Changing

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]

Hold = Callable[[psycopg.Connection[Any], DelayedQueue], None]
AGE: Final = timedelta(seconds=5)
# So rarely that no idle poll finds it by chance.
RARELY: Final = timedelta(minutes=1)


@pytest.fixture
def queue() -> DelayedQueue:
    return DelayedQueue("bursts")


def offer_uncommitted(connection: psycopg.Connection[Any], queue: DelayedQueue) -> None:
    insert(connection, queue, "early", schedule_at=to_milliseconds(datetime.now(UTC) - AGE))


def lock(connection: psycopg.Connection[Any], queue: DelayedQueue) -> None:
    queue.offer_or_update("early", 1, schedule_at=datetime.now(UTC) - AGE)
    connection.execute('SELECT FROM delayed_queue WHERE "pKey" = %s FOR UPDATE', ["early"])


@pytest.mark.parametrize(("hold", "end"), [(offer_uncommitted, "COMMIT"), (lock, "ROLLBACK")])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_w9_a_burst_handles_what_came_late_below_the_mark(queue, hold, end, is_dynamic):
    workers: list[Worker] = []

    def handle(envelope: Envelope) -> None:
        if envelope.key == "first":
            wait_until(lambda: _sleeps(workers[0]))
            other.execute(end)

    with raw_connection() as other:
        other.execute("BEGIN")
        hold(other, queue)
        queue.offer_or_update("first", 1)
        workers.append(_worker(queue.name, handle, is_dynamic))
        counts = workers[0].run()
    assert counts.done == 2
    assert not Message.objects.exists()


def test_w9_a_burst_in_transactions_ends(queue: DelayedQueue) -> None:
    queue.offer_or_update("only", 1)
    handler = handler_of(queue.name, lambda envelope: None, transactional=True)
    worker = worker_with(handler, burst=True, poll_interval=RARELY)
    with running(worker) as thread:
        thread.join(10)
        assert not thread.is_alive()
    assert worker.counts.done == 1


def _worker(name: str, function: Callable[[Envelope], Any], is_dynamic: bool) -> Worker:
    options: dict[str, Any] = {"burst": True, "poll_interval": RARELY}
    if is_dynamic:
        return Changing(name, function=function).worker(**options)
    return worker_with(handler_of(name, function), **options)


def _sleeps(worker: Worker) -> bool:
    """True once the worker has made all its polls before a sleep."""
    return all(each.schedule.next_at > time.monotonic() + 0.1 for each in worker.consumers)
