"""A worker while another session holds an old snapshot: ``python -m benchmarks.held_snapshot``.

Nothing that dies after the snapshot can be vacuumed: every message leaves its dead index
entries behind for as long as the snapshot is held. ``--dead`` asks something else: is what workers
tell of a claim from the start what one takes?
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import mean, median
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from benchmarks.database import OURS, benchmark_database, embedded_server, empty
from benchmarks.figures import Line, Plot, Report, Table, parser_for, percentile, say
from benchmarks.machine import describe
from benchmarks.running import Program, RunningWorker, working
from benchmarks.workerapp.stamps import Looked, Start

MARK: Final = "scan position"
NO_MARK: Final = "without it"
SWITCHES: Final[dict[str, tuple[str, ...]]] = {
    MARK: ("BENCHMARK_NOTES_LOOKS",),
    NO_MARK: ("BENCHMARK_NOTES_LOOKS", "BENCHMARK_ONLY_FULL_LOOKS"),
}
# Messages per call of the producer.
CALL: Final = 4
BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Slice:
    """What happened in some seconds of the run."""

    second: float
    per_second: float
    p50_ms: float
    p99_ms: float
    longest_ms: float
    looks: int
    look_ms: float
    full_looks: int
    full_look_ms: float
    full_look_share: float
    worker_cpu: float


@dataclass(slots=True)
class Run:
    name: str
    slices: list[Slice] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    handled: int = 0
    dead_tuples: int = 0


def main() -> None:
    """Measure with the scan position, and without it: each poll from the queue's start."""
    options = _options()
    if options.dead:
        _measure_told(options)
        return
    server = options.database_url or embedded_server()
    with benchmark_database(server) as connection:
        report = Report(describe(connection))
        conninfo = make_conninfo(server, dbname=connection.info.dbname)
        runs = [_run(options, connection, conninfo, name) for name in options.polls]
    _tell(report, runs, options)
    report.write(options)


def _options() -> Namespace:
    parser = parser_for("held_snapshot", __doc__)
    parser.add_argument("--minutes", type=float, help="of each run (10; quick 1)")
    parser.add_argument("--rate", type=float, default=800.0, help="messages per second (800)")
    parser.add_argument("--backlog", type=int, default=20_000, help="drained before and after")
    parser.add_argument("--dead", type=int, nargs="+", default=[], help="so many dead rows, rising")
    parser.add_argument("--polls", nargs="+", choices=list(SWITCHES), default=list(SWITCHES))
    options = parser.parse_args()
    options.minutes = options.minutes or (1 if options.quick else 10)
    options.slice = 10.0 if options.minutes < 5 else 30.0
    return options


def _run(options: Namespace, connection: psycopg.Connection[Any], conninfo: str, name: str) -> Run:
    empty(connection, OURS)
    program = Program(conninfo, switches=SWITCHES[name])
    run = Run(name)
    with _held_snapshot(conninfo), working(program) as worker:
        run.drains.append(_drain(worker, options.backlog))
        run.slices.extend(_flow(options, program, worker))
        run.drains.append(_drain(worker, options.backlog))
        run.handled = int(options.rate * options.minutes * 60) + 2 * options.backlog
        run.dead_tuples = _dead_tuples(connection)
    say(f"{name}: drains {run.drains[0]:,.0f}/s, then {run.drains[-1]:,.0f}/s")
    return run


@contextmanager
def _held_snapshot(conninfo: str) -> Iterator[None]:
    with psycopg.connect(conninfo) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1")
        yield


def _dead_tuples(connection: psycopg.Connection[Any]) -> int:
    # What VACUUM has to leave is what it counts.
    connection.execute("VACUUM delayed_queue")
    row = connection.execute(
        "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'delayed_queue'"
    ).fetchone()
    return int(row[0]) if row else 0


def _drain(worker: RunningWorker, count: int) -> float:
    """Return the messages per second at which the worker drains a backlog of so many."""
    from delayed_queue import DelayedQueue, ScheduledMessage

    queue = DelayedQueue("benchmark")
    queue.pause()
    prefix = f"backlog-{time.time_ns()}"
    for first in range(0, count, BATCH):
        now, last = time.time(), min(first + BATCH, count)
        queue.offer_batch([ScheduledMessage(f"{prefix}-{n}", now) for n in range(first, last)])
    queue.resume()
    starts: list[Start] = []

    def is_drained() -> bool:
        starts.extend(worker.reader.read()[0])
        return len(starts) >= count

    worker.wait_for(is_drained)
    began, ended = (each(start.started_at for start in starts) for each in (min, max))
    return count / (ended - began)


def _flow(options: Namespace, program: Program, worker: RunningWorker) -> Iterator[Slice]:
    """Have messages flow; yield what each slice of the time brought."""
    seconds = options.minutes * 60
    arguments = (str(options.rate), str(seconds), str(CALL), f"flow-{time.time_ns()}")
    producer = program.start(worker.stamps, "benchmarks.workerapp.producer", *arguments)
    try:
        yield from _slices(worker, seconds, options.slice)
        producer.wait(seconds)
    finally:
        producer.kill()
    # What is left does not belong to the drain that follows.
    worker.wait_for(lambda: not any(worker.reader.read()))


def _slices(worker: RunningWorker, seconds: float, length: float) -> Iterator[Slice]:
    worker.wait_for(lambda: worker.reader.read()[0])
    began_at, cpu = time.monotonic(), worker.cpu_seconds()
    for number in range(int(seconds / length)):
        ends = began_at + (number + 1) * length
        # The producer started a moment before: it ends before the last slice would.
        time.sleep(max(min(ends, began_at + seconds - 1) - time.monotonic(), 0))
        starts, looks = worker.reader.read()
        spent, cpu = worker.cpu_seconds() - cpu, worker.cpu_seconds()
        lasted = min(length, seconds - 1 - number * length)
        each = _slice((number + 1) * length, lasted, starts, looks, spent)
        say(f"{each.second:5.0f} s: {each.per_second:5.0f}/s  p50 {each.p50_ms:6.1f} ms  "
            f"p99 {each.p99_ms:7.1f} ms  full look {each.full_look_ms:6.1f} ms")  # fmt: skip
        yield each


def _slice(
    second: float, lasted: float, starts: list[Start], looks: list[Looked], cpu: float
) -> Slice:
    delays = [each.delay_ms for each in starts]
    full = [each.seconds for each in looks if each.is_full]
    others = [each.seconds for each in looks if not each.is_full]
    return Slice(
        second, len(starts) / lasted, percentile(delays, 50), percentile(delays, 99),
        max(delays, default=float("nan")), len(others),
        mean(others) * 1000 if others else float("nan"), len(full),
        mean(full) * 1000 if full else float("nan"), sum(full) / lasted, cpu / lasted,
    )  # fmt: skip


# Offered and deleted in one transaction, so that nobody handles it.
DIE: Final = """
WITH numbers AS (
    SELECT n, floor(extract(epoch FROM now()) * 1000)::bigint - 600000 AS due
    FROM generate_series(1, %(count)s) AS n
)
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT 'dead-' || n, %(kind)s, 'x', due + n / 10, due, due FROM numbers
"""
# A worker believes a scan step by step, one each half minute, and tells it with a heartbeat.
BELIEVED_SECONDS: Final = 150.0


TOLD: Final = (
    "dead rows", "told by the worker, ms", "try_poll(), median of 5, ms", "told / taken",
    "0.3 µs for each, ms",
)  # fmt: skip


def _measure_told(options: Namespace) -> None:
    """Have rows die under a snapshot; ask what workers tell of a claim, and how long one takes."""
    server = options.database_url or embedded_server()
    with benchmark_database(server) as connection:
        report = Report(describe(connection))
        conninfo = make_conninfo(server, dbname=connection.info.dbname)
        table = Table("A claim from the start of the queue: told and taken", TOLD)
        with _held_snapshot(conninfo), working(Program(conninfo)):
            for rows in options.dead:
                _have_die(connection, rows)
                time.sleep(BELIEVED_SECONDS)
                table.rows.append(_told_and_taken())
                say("  ".join(table.rows[-1]))
    report.tables.append(table)
    report.write(options)


def _have_die(connection: psycopg.Connection[Any], rows: int) -> None:
    """Have so many rows be dead, with those that are."""
    from delayed_queue import DelayedQueue
    from delayed_queue.observe.snapshots import oldest_snapshot

    def dead() -> int:
        found = oldest_snapshot()
        return 0 if found is None else found.dead_rows

    with connection.transaction():
        queue = DelayedQueue("benchmark")
        connection.execute(DIE, {"count": rows - dead(), "kind": queue.kind})
        connection.execute("DELETE FROM delayed_queue WHERE \"pKey\" LIKE 'dead-%'")
    connection.execute("SELECT pg_stat_force_next_flush()")
    connection.execute("SELECT 1")


def _told_and_taken() -> list[str]:
    from delayed_queue import DelayedQueue
    from delayed_queue.observe.snapshots import oldest_snapshot

    found, queue = oldest_snapshot(), DelayedQueue("benchmark")
    assert found is not None  # noqa: S101 - this very program holds it
    spans = []
    for _ in range(5):
        began_at = time.perf_counter()
        queue.try_poll()
        spans.append((time.perf_counter() - began_at) * 1000)
    taken = median(spans)
    return [
        f"{found.dead_rows:,}", f"{found.claim_ms:,}", f"{taken:,.0f}",
        f"{found.claim_ms / taken:.2f}", f"{found.dead_rows * 0.3e-3:,.0f}",
    ]  # fmt: skip


HEADER: Final = (
    "second", "messages/s", "pick-up p50, ms", "p99", "longest", "looks", "ms each",
    "full looks", "ms each", "their share of the time", "worker CPU",
)  # fmt: skip


def _tell(report: Report, runs: list[Run], options: Namespace) -> None:
    report.data = {
        "rate": options.rate,
        "minutes": options.minutes,
        "runs": [asdict(each) for each in runs],
    }
    summary = Table(
        f"{options.minutes:g} minutes at {options.rate:g} messages/s under a held snapshot",
        ("", "messages handled", "row versions that VACUUM must leave", "drain before, messages/s",
         "after", "after / before"),
    )  # fmt: skip
    report.tables.append(summary)
    for run in runs:
        before, after = run.drains
        summary.rows.append(
            (run.name, f"{run.handled:,}", f"{run.dead_tuples:,}", f"{before:,.0f}",
             f"{after:,.0f}", f"{after / before:.2f}")
        )  # fmt: skip
        rows = [_cells(each) for each in run.slices]
        report.tables.append(Table(f"In slices of {options.slice:g} s: {run.name}", HEADER, rows))
    report.plots = [
        _plot(runs, "Pick-up, p99", "ms", "p99_ms", is_log_y=True),
        _plot(runs, "Throughput", "messages/s", "per_second"),
        _plot(runs, "CPU of the worker", "cores", "worker_cpu"),
    ]


def _cells(each: Slice) -> list[str]:
    return [
        f"{each.second:.0f}", f"{each.per_second:,.0f}", f"{each.p50_ms:.1f}", f"{each.p99_ms:.1f}",
        f"{each.longest_ms:.0f}", f"{each.looks:,}", f"{each.look_ms:.1f}", f"{each.full_looks:,}",
        f"{each.full_look_ms:.1f}", f"{each.full_look_share:.1%}", f"{each.worker_cpu:.1%}",
    ]  # fmt: skip


def _plot(runs: list[Run], title: str, y: str, figure: str, *, is_log_y: bool = False) -> Plot:
    lines = [
        Line(run.name, [(each.second, getattr(each, figure)) for each in run.slices])
        for run in runs
    ]
    return Plot(f"{title}, under a held snapshot", "seconds", y, lines, is_log_y=is_log_y)


if __name__ == "__main__":
    main()
