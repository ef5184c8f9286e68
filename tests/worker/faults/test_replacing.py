"""Processes that are replaced in order, after N messages or above a limit of memory (W16)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import Message, Worker
from tests.support.ledger import offer
from tests.support.processes import Process, children_of, wait_until, worker
from tests.workerapp.handlers import GATE
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# No lease of these tests expires: a redelivered message was released.
LEASE = ("--lease", "600")


def deliveries() -> list[tuple[str, int]]:
    return sorted(Effect.objects.values_list("key", "attempt"))


@contextmanager
def used_up(other: psycopg.Connection[Any]) -> Iterator[tuple[Process, int]]:
    """Run a process that has handled its share, while its handler of "old" waits at the gate."""
    other.execute("SELECT pg_advisory_lock(%s)", [GATE])
    DelayedQueue("gated").offer_or_update("old", 1)
    options = ("--queue", "gated", "--queue", "ledger", "--concurrency", "2", *LEASE)
    with worker(*options, "--max-messages-per-process", "1") as process:
        wait_until(lambda: Effect.objects.filter(key="old").exists())
        DelayedQueue("ledger").offer_or_update("first", 1)
        wait_until(lambda: process.has_said("reason=messages"))
        yield process, Effect.objects.values_list("pid", flat=True).get(key="old")


@pytest.mark.parametrize("processes", ["1", "2"])
def test_w16_processes_are_replaced_and_each_message_is_handled_once(processes: str) -> None:
    queue = DelayedQueue("ledger")
    keys: list[str] = []
    options = ("--processes", processes, "--max-messages-per-process", "20", "--batch-size", "5")

    def several_have_handled() -> bool:
        keys.extend(offer(queue, 10, f"{len(keys)}-"))
        return Effect.objects.values("pid").distinct().count() >= 2 * int(processes) + 1

    with worker("--queue", "ledger", *options, *LEASE) as process:
        wait_until(several_have_handled)
        wait_until(lambda: not Message.objects.exists())
        process.send_signal(signal.SIGTERM)
        code, output = process.ended()
    assert code == 0
    assert "process_died" not in output
    assert "reason=messages" in output
    assert deliveries() == sorted((key, 1) for key in keys)
    assert f" {len(keys)} done" in output  # of all processes, also those that were replaced


def test_w16_another_process_claims_before_the_old_one_has_finished(other):
    with used_up(other) as (process, old):
        keys = (f"new {number}" for number in count())

        def another_handles_messages() -> bool:
            DelayedQueue("ledger").offer_or_update(next(keys), 1)
            return Effect.objects.exclude(pid=old).exists()

        wait_until(another_handles_messages)
        assert old in children_of(process)
        other.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        wait_until(lambda: old not in children_of(process))
        wait_until(lambda: not Worker.objects.filter(pid=old).exists())
        wait_until(lambda: not Message.objects.exists())
    assert Effect.objects.filter(key="old").count() == 1
    assert {attempt for _, attempt in deliveries()} == {1}


def test_w16_a_process_that_is_killed_while_another_takes_over_is_replaced_once(other):
    with used_up(other) as (process, old):
        wait_until(lambda: len(children_of(process)) == 2)
        os.kill(old, signal.SIGKILL)
        wait_until(lambda: Effect.objects.filter(key="old").count() == 2)
        assert len(children_of(process)) == 1
        other.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        wait_until(lambda: not Message.objects.exists())
        assert process.said().count("event=process_died") == 1
    assert deliveries() == [("first", 1), ("old", 1), ("old", 2)]


def test_w16_a_large_process_is_replaced_after_a_message() -> None:
    """Every process has more than a mebibyte; the first heartbeat measures it."""
    with worker("--queue", "ledger", "--max-memory-per-process", "1", *LEASE) as process:
        wait_until(Worker.objects.exists)
        (before,) = children_of(process)
        offer(DelayedQueue("ledger"), 1)
        wait_until(lambda: before not in children_of(process))
        wait_until(Worker.objects.exclude(pid=before).exists)
        # It has handled nothing, so it stays.
        assert process.said().count("reason=memory") == 1


def test_w16_without_a_supervisor_the_process_exits_to_be_started_again() -> None:
    offer(DelayedQueue("ledger"), 1)
    options = ("--processes", "0", "--max-messages-per-process", "1", *LEASE)
    with worker("--queue", "ledger", *options) as process:
        code, output = process.ended()
    assert code == 75
    assert "reason=messages" in output
    assert not Message.objects.exists()
