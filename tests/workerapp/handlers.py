"""Handlers controlled by their message."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
import threading
from datetime import timedelta
from importlib import import_module
from typing import Final

from asgiref.sync import sync_to_async
from django.db import connection
from django.dispatch import receiver

from delayed_queue import Batch, Envelope, Groups, Reject, RetryPolicy, Snooze, handler
from delayed_queue.observe import signals
from tests.workerapp.models import Effect

# Variables of command line tests: a module to import, a fault in supervised processes alone.
if more := os.environ.get("MORE_HANDLERS"):
    import_module(more)
if os.environ.get("BREAK_CHILDREN"):

    @receiver(signals.worker_started)
    def break_it(**_: object) -> None:
        sys.stderr.write("broken in the child\n")
        sys.stderr.flush()
        os._exit(1)


QUICK = RetryPolicy.ladder("100ms 100ms")
# For outages, each of which may fail an attempt at a message: none may become a dead letter.
PATIENT = RetryPolicy.exponential(timedelta(milliseconds=50), factor=1, max_attempts=1000)
# An advisory lock: its holder keeps the handlers of "gated" waiting.
GATE: Final = 20_26


@handler("ledger", retry=QUICK)
def record(envelope: Envelope) -> None:
    """Write one row for each delivery."""
    Effect.objects.create(
        queue=envelope.queue, key=envelope.key, attempt=envelope.attempt, pid=os.getpid()
    )


@handler("patient", retry=PATIENT)
def persist(envelope: Envelope) -> None:
    record(envelope)


def record_payload(envelope: Envelope, under: str = "") -> None:
    """Write one row for the payload, which identifies the version of a key."""
    Effect.objects.create(
        queue=envelope.queue,
        key=f"{envelope.payload}{under}",
        attempt=envelope.attempt,
        pid=os.getpid(),
    )


@handler("soak", retry=PATIENT)
def record_lease(envelope: Envelope) -> None:
    """Write the handled version and its lease, and return after a while."""
    record_payload(envelope, f"@{envelope.lease_id}")
    threading.Event().wait(0.03)


@handler("limited", retry=PATIENT, groups=Groups(concurrency=2))
def record_limited(envelope: Envelope) -> None:
    record(envelope)
    threading.Event().wait(0.01)


@handler("ordered", retry=PATIENT, groups=Groups(order="fifo"))
def record_ordered(envelope: Envelope) -> None:
    """Fail now and then: no message may pass one that waits for a retry."""
    record(envelope)
    if envelope.message_id % 7 == 0 and envelope.attempt == 1:
        raise ValueError("once")


@handler("stuck", retry=QUICK)
def hang(envelope: Envelope) -> None:
    """Write the row, and never return."""
    record(envelope)
    threading.Event().wait()


@handler("endless", retry=RetryPolicy.never())
def run_endlessly(envelope: Envelope) -> None:
    """Write the row, and never return; by the payload, hold the interpreter as well."""
    record(envelope)
    if envelope.payload == "hold":
        ctypes.PyDLL(None).sleep(600)
    threading.Event().wait()


@handler("endless_awaited", retry=RetryPolicy.never())
async def run_endlessly_in_the_loop(envelope: Envelope) -> None:
    await record_async(envelope)
    await asyncio.Event().wait()


@handler("gated", retry=QUICK)
def pass_gate(envelope: Envelope) -> None:
    """Write the row, and return once the gate is open."""
    record(envelope)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_lock_shared(%s), pg_advisory_unlock_shared(%s)", [GATE] * 2
        )


@handler("conduct", retry=QUICK)
def behave(envelope: Envelope) -> None:
    """Act as the payload names."""
    record(envelope)
    match envelope.payload:
        case "fail":
            raise ValueError("asked to fail")
        case "fail once" if envelope.attempt == 1:
            raise ValueError("asked to fail once")
        case "hang once" if envelope.attempt == 1:
            threading.Event().wait()
        case "snooze" if Effect.objects.filter(queue="conduct", key=envelope.key).count() == 1:
            raise Snooze(timedelta(milliseconds=50))
        case "reject":
            raise Reject("asked to be rejected")
        case "exit":
            raise SystemExit(3)
        case "die":
            os._exit(9)


def die_as_named(envelope: Envelope) -> None:
    """Kill the process as the payload names, if it names a way."""
    match envelope.payload:
        case "exit":
            os._exit(9)
        case "segfault":
            ctypes.string_at(0)
        case "out of memory":  # as the kernel does
            os.kill(os.getpid(), signal.SIGKILL)


@handler("poison", retry=QUICK)
def die(envelope: Envelope) -> None:
    die_as_named(envelope)
    record(envelope)


# Two attempts, so that a poison message dies twice.
FRAIL = RetryPolicy.ladder("100ms")


def die_or_take_a_while(envelope: Envelope) -> None:
    die_as_named(envelope)
    threading.Event().wait(0.05)
    record(envelope)


@handler("frail", retry=FRAIL)
def die_or_be_frail(envelope: Envelope) -> None:
    die_or_take_a_while(envelope)


@handler("frail_transacted", retry=FRAIL, transactional=True)
def die_or_be_frail_in_a_transaction(envelope: Envelope) -> None:
    die_or_take_a_while(envelope)


@handler("frail_awaited", retry=FRAIL)
async def die_or_be_frail_in_the_loop(envelope: Envelope) -> None:
    die_as_named(envelope)
    await asyncio.sleep(0.05)
    await record_async(envelope)


NEVER = RetryPolicy.never()


def die_of_one(batch: Batch) -> None:
    for each in batch:
        die_as_named(each)
    Effect.objects.bulk_create(
        Effect(queue=each.queue, key=each.key, attempt=each.attempt, pid=os.getpid())
        for each in batch
    )


@handler("crowd", many=True, batch_size=1000, retry=NEVER)
def die_of_one_in_a_thread(batch: Batch) -> None:
    die_of_one(batch)


@handler("crowd_awaited", many=True, batch_size=1000, retry=NEVER)
async def die_of_one_in_the_loop(batch: Batch) -> None:
    await sync_to_async(die_of_one)(batch)


@handler("crowd_transacted", many=True, batch_size=1000, retry=NEVER, transactional=True)
def die_of_one_in_a_transaction(batch: Batch) -> None:
    die_of_one(batch)


# The keys of the bystanders that this process has started; the killer waits for all of them.
BEGUN: Final[set[str]] = set()
BYSTANDERS: Final = frozenset(
    {"sync1", "sync2", "sync3", "first", "transacted", "async1", "async2"}
)


def killer_has_died() -> bool:
    return Effect.objects.filter(key="killer").exists()


@handler("brittle", retry=NEVER)
def kill_beside_others(envelope: Envelope) -> None:
    """Die once all bystanders are in flight, and at each later delivery; or be a bystander."""
    if envelope.payload is None:
        stand_by(envelope)
        return
    if not killer_has_died():
        while not BEGUN >= BYSTANDERS:
            threading.Event().wait(0.01)
        record(envelope)
    die_as_named(envelope)


def stand_by(envelope: Envelope) -> None:
    """Run until the process dies; after the first death return at once."""
    if not killer_has_died():
        BEGUN.add(envelope.key)
        threading.Event().wait()
    record(envelope)


@handler("brittle_ordered", retry=NEVER, groups=Groups(order="fifo", on_dead="block"))
def stand_by_in_order(envelope: Envelope) -> None:
    stand_by(envelope)


@handler("brittle_transacted", retry=NEVER, transactional=True)
def stand_by_in_a_transaction(envelope: Envelope) -> None:
    stand_by(envelope)


@handler("brittle_awaited", retry=NEVER)
async def stand_by_in_the_loop(envelope: Envelope) -> None:
    if not await Effect.objects.filter(key="killer").aexists():
        BEGUN.add(envelope.key)
        await asyncio.Event().wait()
    await record_async(envelope)


@handler("transacted", retry=QUICK, transactional=True)
def transact(envelope: Envelope) -> None:
    """Write the row first, so that a death afterwards shows its outcome."""
    record(envelope)
    die_as_named(envelope)


@handler("exact", retry=PATIENT, transactional=True)
def record_version(envelope: Envelope) -> None:
    record_payload(envelope)


@handler("awaited", retry=QUICK)
async def record_async(envelope: Envelope) -> None:
    await Effect.objects.acreate(
        queue=envelope.queue, key=envelope.key, attempt=envelope.attempt, pid=os.getpid()
    )


@handler("heeding", retry=QUICK)
async def heed(envelope: Envelope) -> None:
    """Write the row, and another one when it is cancelled."""
    await record_async(envelope)
    try:
        await asyncio.Event().wait()
    finally:
        envelope.key = f"{envelope.key} cancelled"
        await record_async(envelope)


@handler("asking", retry=QUICK)
def ask(envelope: Envelope) -> None:
    """Write the row, and another one after it has polled its cancellation."""
    record(envelope)
    while not envelope.is_cancelled:
        threading.Event().wait(0.01)
    envelope.key = f"{envelope.key} cancelled"
    record(envelope)
