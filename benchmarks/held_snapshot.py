"""A worker under a snapshot that another session holds: ``python -m benchmarks.held_snapshot``.

VACUUM must keep everything that dies after the snapshot, so each handled message leaves its dead
index entries behind. A worker stays fast only if its claims do not read them again: this measures
pick-up while messages flow, and the drain of a backlog before and after.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from benchmarks.shared.database import Connection, benchmark_database, conninfo_of, value_of
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import percentile
from benchmarks.shared.workers import WorkerProcess, offer_stamped, worker_process

BATCH: Final = 1_000
DEAD_ROWS: Final = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'delayed_queue'"


def main() -> None:
    """Hold a snapshot; drain a backlog, let messages flow, drain a backlog again."""
    options = _options()
    with benchmark_database(options.database_url) as connection:
        report = Report(describe(connection))
        conninfo = conninfo_of(connection)
        with held_snapshot(conninfo), worker_process(conninfo) as worker:
            before = _drain(worker, options.backlog)
            flow = _flow(worker, options)
            after = _drain(worker, options.backlog)
            report.tables = [_summary(connection, worker, (before, after)), flow]
    report.write(options)


def _options() -> Namespace:
    options = Options(".held_snapshot", __doc__)
    options.size("minutes", 10.0, 0.2, "minutes of flowing messages")
    options.size("rate", 800.0, 200.0, "messages a second")
    options.size("slice", 30.0, 4.0, "seconds of a row in the table")
    return options.size("backlog", 20_000, 2_000, "messages drained before and after").parse()


@contextmanager
def held_snapshot(conninfo: str) -> Iterator[None]:
    """Hold a snapshot, as a forgotten report does."""
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        yield


def _drain(worker: WorkerProcess, count: int) -> float:
    """Return the messages a second at which the worker drains a backlog."""
    from delayed_queue import DelayedQueue, ScheduledMessage

    queue, prefix, known = DelayedQueue("benchmark"), time.time_ns(), worker.count_calls()
    queue.pause()
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        now = time.time()
        queue.offer_batch([ScheduledMessage(f"{prefix}-{n}", now) for n in numbers])
    queue.resume()
    worker.wait_for_calls(known + count)
    called = [called for _, called in worker.calls()[known:]]
    return count / (max(called) - min(called))


def _flow(worker: WorkerProcess, options: Namespace) -> Table:
    """Offer at the rate; return pick-up and the worker's CPU time of each slice."""
    title = f"{options.minutes:g} minutes at {options.rate:g} messages/s, pick-up in ms"
    table = Table(title, ("second", "handled", "p50", "p99", "longest", "worker's CPU"))
    for number in range(1, round(options.minutes * 60 / options.slice) + 1):
        known, cpu = worker.count_calls(), worker.cpu_seconds()
        offer_stamped(options.rate, options.slice)
        spent = (worker.cpu_seconds() - cpu) / options.slice
        delays = [(called - offered) * 1000 for offered, called in worker.calls()[known:]]
        shown = [percentile(delays, 50), percentile(delays, 99), max(delays)]
        cells = [
            f"{number * options.slice:.0f}",
            f"{len(delays):,}",
            *(f"{ms:.1f}" for ms in shown),
        ]
        table.add(*cells, f"{spent:.1%}")
    return table


def _summary(connection: Connection, worker: WorkerProcess, drains: tuple[float, float]) -> Table:
    # VACUUM counts the row versions that it has to keep.
    connection.execute("VACUUM delayed_queue")
    dead, (before, after) = value_of(connection, DEAD_ROWS), drains
    head = ("handled", "dead rows kept", "drain before, messages/s", "after", "after / before")
    table = Table("Under a held snapshot", head)
    rates = (f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.2f}")
    table.add(f"{worker.count_calls():,}", f"{dead:,}", *rates)
    return table


if __name__ == "__main__":
    main()
