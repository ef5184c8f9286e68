"""Kept connections of handler threads: a cut between messages costs no attempt."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from delayed_queue import DelayedQueue, Envelope, RetryPolicy
from delayed_queue.handlers import HandlerFunction
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.ledger import effects
from tests.support.processes import wait_until
from tests.support.running import handler_of, registry_with, running
from tests.workerapp.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    """Keep connections for long, so that a cut one remains for the next message."""
    before = connection.settings_dict["CONN_MAX_AGE"]
    connection.settings_dict["CONN_MAX_AGE"] = 600
    yield
    connection.settings_dict["CONN_MAX_AGE"] = before


def record(envelope: Envelope) -> None:
    """Write the row, with the id of the writing session in place of the process."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    Effect.objects.create(queue=envelope.queue, key=envelope.key, attempt=envelope.attempt, pid=pid)


def record_by_queue(envelope: Envelope) -> None:
    """Start with a statement of this package, which bypasses Django's cursors."""
    DelayedQueue("other").contains_message("k")
    record(envelope)


async def record_async(envelope: Envelope) -> None:
    await sync_to_async(record)(envelope)


def cut(key: str) -> None:
    """Terminate the session that handled a message, and wait until it has ended."""
    pid = Effect.objects.get(key=key).pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_until(lambda: not is_there(pid))


def is_there(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchone()[0])


def worker_of(function: HandlerFunction | Callable[[Envelope], Awaitable[Any]]) -> Worker:
    handler = handler_of("once", function, retry=RetryPolicy.never())
    return Worker(WorkerOptions(queues=("once",), concurrency=1), registry_with(handler))


@pytest.mark.parametrize("function", [record, record_by_queue, record_async])
def test_one_cut_while_its_thread_idles_costs_the_next_message_no_attempt(function):
    queue = DelayedQueue("once")
    with running(worker_of(function)):
        for key in ("first", "second", "third"):
            queue.offer_or_update(key, 1)
            wait_until(Effect.objects.filter(key=key).exists)
            wait_until(lambda: not Message.objects.exists())
            cut(key)
    assert effects().keys() == {"first", "second", "third"}
    assert not DeadLetter.objects.exists()


def test_one_cut_before_the_first_statement_of_a_handler_costs_no_attempt() -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait_and_record(envelope: Envelope) -> None:
        if envelope.key == "second":
            entered.set()
            assert leave.wait(20)
        record(envelope)

    queue = DelayedQueue("once")
    with running(worker_of(wait_and_record)):
        queue.offer_or_update("first", 1)
        wait_until(lambda: effects() and not Message.objects.exists())
        queue.offer_or_update("second", 1)
        assert entered.wait(20)
        cut("first")
        leave.set()
        wait_until(Effect.objects.filter(key="second").exists)
    assert not DeadLetter.objects.exists()


def test_one_cut_behind_the_first_statement_does_count() -> None:
    def record_twice(envelope: Envelope) -> None:
        record(envelope)
        cut_here(envelope)
        record(envelope)

    def cut_here(envelope: Envelope) -> None:
        with connection.cursor() as cursor, pytest.raises(Exception, match="terminat"):
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    queue = DelayedQueue("once")
    with running(worker_of(record_twice)):
        queue.offer_or_update("k", 1)
        wait_until(DeadLetter.objects.exists)
    assert effects() == {"k": 1}


@pytest.mark.parametrize("function", [record, record_async])
def test_a_handler_that_cannot_connect_uses_up_no_attempt(function: HandlerFunction) -> None:
    """Its message waits a second and comes again, until the database accepts connections."""
    port = connection.settings_dict["PORT"]
    refused = threading.Event()

    def refuse_at_first(envelope: Envelope) -> None:
        if not refused.is_set():
            connection.close()
            connection.settings_dict["PORT"] = "1"
            refused.set()
        record(envelope)

    async def refuse_at_first_async(envelope: Envelope) -> None:
        await sync_to_async(refuse_at_first)(envelope)

    chosen = refuse_at_first if function is record else refuse_at_first_async
    worker = worker_of(chosen)
    try:
        with running(worker):
            DelayedQueue("once").offer_or_update("k", 1)
            wait_until(lambda: worker.counts.snoozed > 1)
            assert Message.objects.get().attempts <= 1
            connection.settings_dict["PORT"] = port
            wait_until(Effect.objects.exists)
    finally:
        connection.settings_dict["PORT"] = port
    assert Effect.objects.get().attempt == 1
    assert not DeadLetter.objects.exists()
