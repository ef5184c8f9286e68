"""The heartbeat on a real database: its row, lost rows, lost connections, outages (W12)."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest
from django.db import connections

import delayed_queue
from delayed_queue.models import Worker
from delayed_queue.observe.workers import BEAT
from delayed_queue.worker.engine.heartbeat import Heartbeat, Snapshot
from tests.support.factories import worker_row
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

FAST: Final = timedelta(milliseconds=20)
IDLE: Final = Snapshot(name="worker-1", process=3, queues=("orders", "mail"))
BACKENDS: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND query ~ 'delayed_queue_(worker|bulk_run)'
    AND pid <> pg_backend_pid() AND pid <> ALL (%s)
"""


class Teller:
    """The source of a worker's snapshots; a test changes it while the heart beats."""

    def __init__(self, snapshot: Snapshot = IDLE) -> None:
        self.snapshot = snapshot
        self.calls = 0

    def __call__(self) -> Snapshot:
        self.calls += 1
        return self.snapshot

    def await_beats(self, number: int = 2) -> None:
        """Return when ``number`` more have started, so that all but the last have finished."""
        before = self.calls
        wait_until(lambda: self.calls >= before + number)


@contextmanager
def beating(describe: Callable[[], Snapshot], interval: timedelta = FAST) -> Iterator[Heartbeat]:
    heartbeat = Heartbeat("default", describe, interval=interval)
    heartbeat.start()
    try:
        yield heartbeat
    finally:
        heartbeat.stop()
        heartbeat.thread.join(20)
        assert not heartbeat.thread.is_alive()


def only() -> Worker:
    """Wait for the one row, and return it."""
    wait_until(lambda: Worker.objects.count() == 1)
    return Worker.objects.get()


def test_w12_a_row_says_what_the_worker_is_and_goes_with_it():
    with beating(Teller(), interval=BEAT):
        worker = only()
        assert (worker.name, worker.process) == ("worker-1", 3)
        assert (worker.host, worker.pid) == (socket.gethostname(), os.getpid())
        assert worker.queues == ["orders", "mail"]
        assert worker.version == delayed_queue.__version__
    assert not Worker.objects.exists()


def test_w12_it_tells_the_counts_as_they_are():
    teller = Teller()
    with beating(teller):
        first = only().heartbeat_at
        teller.snapshot = replace(IDLE, in_flight=1, done=2, failed=3, dead=4, lost=5)
        wait_until(lambda: only().done == 2)
        worker = only()
    counts = (worker.in_flight, worker.done, worker.failed, worker.dead, worker.lost)
    assert counts == (1, 2, 3, 4, 5)
    assert worker.heartbeat_at > first
    assert worker.heartbeat_at >= worker.started_at


class Busy(Teller):
    """A worker that handles 100 orders and 20 mails between any two beats."""

    def __call__(self) -> Snapshot:
        super().__call__()
        done = {"orders": 1_000_000 + 100 * self.calls, "mail": 20 * self.calls}
        return replace(self.snapshot, done_by_queue=done)


def test_w12_rates_are_those_since_the_last_beat():
    with beating(Busy(), interval=timedelta(milliseconds=100)):
        # Messages done before the first beat count in no rate.
        assert only().rates.get("orders", 0) <= 1000
        wait_until(lambda: only().rates)
        rates = only().rates
    # In a tenth of a second each, or longer on a slow machine.
    assert 0 < rates["orders"] <= 1000
    assert rates["orders"] == pytest.approx(5 * rates["mail"], rel=0.01)


def test_w12_a_row_that_somebody_removed_is_written_anew():
    teller = Teller(replace(IDLE, done=7))
    with beating(teller):
        worker = only()
        Worker.objects.all().delete()
        wait_until(lambda: Worker.objects.exclude(id=worker.id).filter(done=7).exists())
        assert only().started_at == worker.started_at
    assert not Worker.objects.exists()


def test_w12_it_connects_anew_when_its_backend_is_terminated(other: psycopg.Connection[Any]):
    teller = Teller()
    with beating(teller):
        worker = only()
        ours = [connections["default"].connection.info.backend_pid]
        wait_until(lambda: other.execute(BACKENDS, [ours]).fetchall())
        for (pid,) in other.execute(BACKENDS, [ours]).fetchall():
            other.execute("SELECT pg_terminate_backend(%s)", [pid])
        teller.snapshot = replace(IDLE, done=9)
        wait_until(lambda: only().done == 9)
        assert only().id == worker.id


def test_w12_an_outage_is_told_once_and_survived(other, caplog):
    """The table is renamed: an outage that only the heartbeat meets."""
    teller = Teller()
    with beating(teller):
        worker = only()
        with caplog.at_level(logging.WARNING, "delayed_queue"):
            other.execute("ALTER TABLE delayed_queue_worker RENAME TO elsewhere")
            try:
                teller.await_beats(5)
            finally:
                other.execute("ALTER TABLE elsewhere RENAME TO delayed_queue_worker")
            assert caplog.text.count("heartbeat_failed") == 1
        teller.snapshot = replace(IDLE, done=9)
        wait_until(lambda: only().done == 9)
        assert only().id == worker.id


def test_w12_without_a_database_from_the_start_it_enlists_later(other):
    other.execute("ALTER TABLE delayed_queue_worker RENAME TO elsewhere")
    teller = Teller()
    with beating(teller):
        try:
            teller.await_beats()
        finally:
            other.execute("ALTER TABLE elsewhere RENAME TO delayed_queue_worker")
        assert only().name == "worker-1"


def test_w12_it_does_not_hold_up_the_end_of_the_worker(other: psycopg.Connection[Any]):
    with beating(Teller()) as heartbeat:
        worker = only()
        with other.transaction():
            other.execute("SELECT FROM delayed_queue_worker WHERE id = %s FOR UPDATE", [worker.id])
            started = time.monotonic()
            heartbeat.stop()
            assert time.monotonic() - started < 20
            assert heartbeat.thread.is_alive()
    assert not Worker.objects.exists()


def test_w12_it_removes_what_has_been_silent_for_a_day():
    gone = worker_row("gone", silent_for=25 * 3600)
    kept = worker_row("kept", silent_for=23 * 3600)
    with beating(Teller(), interval=BEAT):
        wait_until(lambda: not Worker.objects.filter(id=gone.id).exists())
        assert Worker.objects.filter(id=kept.id).exists()
