"""J3: a job deleted before the first byte is not sent; a later delete waits for that byte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import Error

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.handlers import Snooze
from delayed_queue.http.callbacks import gate as gates
from delayed_queue.http.callbacks.delivery import deliverer
from delayed_queue.http.callbacks.gate import (
    HOLD_SECONDS,
    Gate,
    Hold,
    Leave,
    Withdrawn,
    let_through,
)
from delayed_queue.http.jobs.adding import add_job, delete_job
from delayed_queue.http.jobs.jobs import IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.queue.store.settle import HOLD_LEASED
from tests.http.callbacks.delivering import TOPIC, add, permitted
from tests.http.callbacks.servers import Receiver
from tests.support.concurrency import at_most, calling, raw_connection, wait_until_blocked
from tests.support.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("fresh")]

KIND: Final = f"{TOPIC}|callback"
DELETE: Final = "DELETE FROM delayed_queue"
# The open transactions that wait for their client.
HELD: Final = """
SELECT FROM pg_stat_activity
WHERE datname = current_database() AND state = 'idle in transaction'
"""


@pytest.fixture
def envelope(receiver: Receiver) -> Envelope:
    add("a", receiver.url)
    leased = DelayedQueue(TOPIC, kind=KIND, codec="bytes").try_poll()
    assert leased is not None
    return leased


async def adeliver(envelope: Envelope) -> None:
    try:
        await deliverer("default", KIND, has_one_host=True)(envelope)
    finally:
        # The loop's shutdown would otherwise use a thread that keeps its connection.
        await asyncio.get_running_loop().shutdown_asyncgens()


def deliver(envelope: Envelope) -> None:
    async_to_sync(adeliver)(envelope)


def assert_deferred(envelope: Envelope, receiver: Receiver) -> None:
    """Assert a Snooze, which counts no attempt."""
    with pytest.raises(Snooze):
        deliver(envelope)
    assert not receiver.requests


class TestBefore:
    def test_j3_what_was_deleted_while_it_waited_in_the_worker_is_not_sent(
        self, envelope: Envelope, receiver: Receiver
    ) -> None:
        assert delete_job(TOPIC, "a")
        assert_deferred(envelope, receiver)

    def test_j3_what_is_being_deleted_is_not_sent_and_not_lost(self, envelope, receiver):
        with raw_connection() as other, other.transaction(force_rollback=True):
            other.execute(DELETE)
            assert_deferred(envelope, receiver)
        deliver(envelope)
        assert len(receiver.requests) == 1

    def test_j3_what_another_has_leased_is_not_sent(self, envelope, receiver):
        envelope.release()
        assert DelayedQueue(TOPIC, kind=KIND, codec="bytes").try_poll() is not None
        assert_deferred(envelope, receiver)


class TestHeld:
    def test_j3_a_delete_waits_until_the_first_byte_may_have_left(self, envelope, admin):
        with raw_connection() as holder:
            assert hold(holder, envelope) == 1
            with calling(lambda: delete_job(TOPIC, "a")) as deleting:
                wait_until_blocked(admin, deleting)
                holder.execute("ROLLBACK")
                assert deleting.answer()

    def test_an_update_waits_too(self, envelope, receiver, admin):
        new = job_from({"jobId": "a", "topic": TOPIC, "url": receiver.url, "body": "new"})
        with raw_connection() as holder:
            assert hold(holder, envelope) == 1
            with calling(lambda: add_job(new, if_exists=IfExists.UPDATE)) as updating:
                wait_until_blocked(admin, updating)
                holder.execute("ROLLBACK")
                assert str(updating.answer().outcome) == "updated"

    def test_j3_what_is_held_no_longer_does_not_leave(self, envelope, receiver, admin, monkeypatch):
        monkeypatch.setattr(gates, "HOLD_SECONDS", 0.05)

        async def run() -> None:
            sending = asyncio.ensure_future(adeliver(envelope))
            while not sending.done():
                # A handler that blocks the loop until the row is not held any more.
                wait_until(lambda: not admin.execute(HELD).fetchall())
                await asyncio.sleep(0)
            with pytest.raises(Snooze):
                await sending

        async_to_sync(run)()
        assert not receiver.requests
        monkeypatch.undo()
        deliver(envelope)
        assert len(receiver.requests) == 1


def hold(holder: psycopg.Connection[Any], envelope: Envelope) -> int:
    holder.execute("BEGIN")
    names = {"ids": [envelope.message_id], "lease_ids": [envelope.lease_id]}
    return len(holder.execute(HOLD_LEASED, names).fetchall())


class TestTrouble:
    def test_a_database_that_does_not_answer_is_no_failure_of_the_receiver(
        self, envelope: Envelope, receiver: Receiver, other: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Although its own time, TOTAL_TIMEOUT, is shorter than the wait for the database."""
        monkeypatch.setattr(gates, "ASK_SECONDS", 1)

        async def run() -> None:
            with pytest.raises(Snooze):
                await deliverer("default", KIND, has_one_host=True)(envelope)
            await asyncio.to_thread(other.execute, "ROLLBACK")
            # Waits for the current call of the gate's thread.
            await asyncio.get_running_loop().shutdown_asyncgens()

        with permitted(receiver, TOTAL_TIMEOUT=timedelta(seconds=0.5)):
            other.execute("BEGIN")
            other.execute("LOCK TABLE delayed_queue IN ACCESS EXCLUSIVE MODE")
            async_to_sync(run)()
        assert not receiver.requests
        deliver(envelope)
        assert len(receiver.requests) == 1

    def test_a_lost_connection_is_replaced(self, envelope: Envelope, admin: Any) -> None:
        async def run(gate: Gate) -> None:
            (await gate.enter(envelope)).end()
            await asyncio.to_thread(terminate_others, admin)
            with pytest.raises(Error):
                await gate.enter(envelope)
            (await gate.enter(envelope)).end()

        asyncio.run(with_gate(run))

    def test_who_gives_up_is_not_waited_for(self, envelope: Envelope, other: Any) -> None:
        async def run(gate: Gate) -> None:
            entering = asyncio.ensure_future(gate.enter(envelope))
            await asyncio.sleep(0)
            entering.cancel()
            await asyncio.wait([entering])
            (await gate.enter(envelope)).end()
            await asyncio.to_thread(other.execute, DELETE)
            with pytest.raises(Withdrawn):
                await gate.enter(envelope)

        with at_most(gates.HOLD_SECONDS):
            asyncio.run(with_gate(run))


def test_j3_one_that_is_cancelled_takes_nobody_with_it(envelope: Envelope) -> None:
    """Its task has not run again when the others pass."""

    async def run(gate: Gate) -> None:
        cancelled, other = Leave(envelope), Leave(envelope)
        cancelled.answer.cancel()
        hold = Hold([cancelled, other])
        let_through([cancelled, other], {other.place}, hold)
        await other.answer
        cancelled.end()
        other.end()
        began = time.monotonic()
        hold.wait()
        assert time.monotonic() - began < HOLD_SECONDS / 2

    async_to_sync(with_gate)(run)


async def with_gate(run: Callable[[Gate], Awaitable[None]]) -> None:
    gate = Gate("default")
    gate.open()
    try:
        await run(gate)
    finally:
        await gate.close()


def terminate_others(admin: psycopg.Connection[Any]) -> None:
    """Close the connections to the test database whose last transaction was rolled back."""
    ended = """SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE datname = current_database() AND state = 'idle' AND query = 'ROLLBACK'"""
    wait_until(lambda: bool(admin.execute(ended).fetchall()))
