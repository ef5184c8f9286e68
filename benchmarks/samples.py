"""What samples cost a worker: ``python -m benchmarks.samples``."""

from __future__ import annotations

import time
from argparse import Namespace
from datetime import timedelta
from statistics import median
from typing import Any, Final

import psycopg

from benchmarks.database import KIND, OURS, benchmark_database, embedded_server, fill
from benchmarks.figures import Report, Table, parser_for
from benchmarks.machine import describe

BATCHES: Final = (1, 10, 100, 500)
QUEUES: Final = 20
ROUNDS: Final = 5


def main() -> None:
    """Measure what is counted for each message, and what is told and measured each minute."""
    options = _options()
    with benchmark_database(options.database_url or embedded_server()) as connection:
        report = Report(describe(connection))
        rows, head = [], ("batch", "a message takes, µs", "noted of it, µs", "share")
        for size in BATCHES:
            takes, noted = _message(connection, options.messages, size), _noted(size)
            rows.append(
                [f"{size:,}", f"{takes * 1e6:.1f}", f"{noted * 1e6:.3f}", f"{noted / takes:.2%}"]
            )
        minute = _minute(connection)
    report.tables += [
        Table("What a message takes in a drain, and what is noted of it for samples", head, rows),
        Table(f"Once a minute, of {QUEUES} queues", ("CPU, ms", "of a core"),
              [[f"{minute * 1000:.1f}", f"{minute / 60:.3%}"]]),
    ]  # fmt: skip
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("samples", __doc__)
    parser.add_argument("--messages", type=int, help="in each of five drains (50,000; quick 5,000)")
    options = parser.parse_args()
    options.messages = options.messages or (5_000 if options.quick else 50_000)
    return options


def _message(connection: psycopg.Connection[Any], count: int, size: int) -> float:
    """Return the time of a message in a drain that does nothing else, by one thread; the least."""
    from benchmarks.drains import _handlers
    from delayed_queue.worker.options import WorkerOptions
    from delayed_queue.worker.worker import Worker

    count, spent = min(count, 100 * size), []
    for _ in range(ROUNDS):
        fill(connection, OURS, count)
        options = WorkerOptions(
            queues=("benchmark",), concurrency=1, batch_size=size, burst=True, cron=False
        )
        worker, began = Worker(options, _handlers()), time.perf_counter()
        worker.run()
        spent.append((time.perf_counter() - began) / count)
    return min(spent)


def _noted(size: int) -> float:
    """Return what the worker notes of a message, in batches of that size: when it was due, and
    how long its handler took."""
    from delayed_queue.worker.consumers import Tally

    tally, rounds = Tally(KIND), 200_000 // size
    rows, took = [time.time_ns() // 1_000_000] * size, [0.001] * size
    began = time.process_time()
    for _ in range(rounds):
        now = rows[0] + 7
        tally.note_lateness([now - each for each in rows])
        tally.note_runs(took[:])
        tally.done += size
    return (time.process_time() - began) / rounds / size


def _minute(connection: psycopg.Connection[Any]) -> float:
    """Return the CPU of worker and server for the samples of a minute."""
    from django.db import connection as ours

    from delayed_queue.observe.history import Sampler
    from delayed_queue.worker.consumers import Tally

    fill(connection, OURS, 10_000)
    ours.ensure_connection()
    pid, spent = ours.connection.info.backend_pid, []
    for _ in range(ROUNDS):
        tallies = [Tally(f"queue-{n}|json") for n in range(QUEUES)]
        for each in tallies:
            each.note_lateness([5, 50])
            each.note_runs([0.01])
            each.done = 7
        sampler = Sampler("default", timedelta(minutes=1))
        connection.execute("TRUNCATE delayed_queue_sample")
        began = time.process_time() + _server_seconds(pid)
        sampler.look([])
        sampler = Sampler("default", timedelta(minutes=1))
        sampler.look(tallies)
        spent.append(time.process_time() + _server_seconds(pid) - began)
    return median(spent)


def _server_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat") as file:  # noqa: PTH123
        return int(file.read().split()[0]) / 1e9


if __name__ == "__main__":
    main()
