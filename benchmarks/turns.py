"""A queue with limits per group beside one without: ``python -m benchmarks.turns``.

One worker in this process, eight threads. First the drain of the same backlog with and without
limits, in turns; then the time until a message of another group starts behind 100,000 of one.
"""

from __future__ import annotations

import threading
import time
from argparse import Namespace
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.shared.database import PAYLOAD, Connection, benchmark_database, fill_groups
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import in_turns, percentile, ratio
from benchmarks.shared.workers import worker_for, working

QUEUE: Final = "turns"
KIND: Final = "turns|bytes"
GROUPS: Final = 1_000
SLOW_SECONDS: Final = 0.005


def main() -> None:
    """Measure drains with handlers of 0 and 1 ms, then delays behind a backlog."""
    options = _options()
    with benchmark_database(options.database_url) as connection:
        report = Report(describe(connection))
        report.tables = [_drains(connection, options), _delays(connection, options)]
    report.write(options)


def _options() -> Namespace:
    options = Options(".turns", __doc__).size("rounds", 3, 1, "drains of each kind")
    options.size("messages", 20_000, 2_000, "messages of a drain")
    options.size("backlog", 100_000, 5_000, "messages of the one group")
    return options.size("samples", 200, 20, "messages of the other group").parse()


def _drains(connection: Connection, options: Namespace) -> Table:
    from delayed_queue import Groups

    heads = ("handlers", "without limits, messages/s", "two of a group at a time", "ratio")
    table = Table(f"Drain of {options.messages:,} messages of {GROUPS:,} groups", heads)
    for seconds in (0.0, 0.001):
        drain = partial(_drain, connection, options.messages, seconds)
        ways = {"plain": partial(drain, None), "limited": partial(drain, Groups(concurrency=2))}
        found = in_turns(options.rounds, ways, warm_up=False)
        plain, limited = found["plain"], found["limited"]
        rates = (f"{median(plain):,.0f}", f"{median(limited):,.0f}")
        table.add(f"{seconds * 1000:.0f} ms", *rates, f"{ratio(limited, plain):.2f}")
    return table


def _drain(connection: Connection, messages: int, seconds: float, groups: Any) -> float:
    """Return the messages a second of a drain with these limits."""
    fill_groups(connection, KIND, messages, GROUPS)
    count, done = iter(range(1, messages + 1)), threading.Event()

    def handle(_: Any) -> None:
        if seconds:
            time.sleep(seconds)
        if next(count) == messages:
            done.set()

    started_at = time.perf_counter()
    with working(worker_for(QUEUE, handle, groups, concurrency=8, batch_size=500)):
        done.wait()
        return messages / (time.perf_counter() - started_at)


def _delays(connection: Connection, options: Namespace) -> Table:
    """Return the table of milliseconds from an offer of another group to its handler."""
    from delayed_queue import DelayedQueue, Groups

    fill_groups(connection, KIND, options.backlog, 1)
    queue, started, delays = DelayedQueue(QUEUE, codec="bytes"), threading.Event(), []

    def handle(envelope: Any) -> None:
        if envelope.group == "other":
            started.set()
        time.sleep(SLOW_SECONDS)

    with working(worker_for(QUEUE, handle, Groups(), concurrency=8, batch_size=100)):
        for number in range(options.samples):
            time.sleep(0.02)
            started.clear()
            offered_at = time.perf_counter()
            queue.offer_or_update(f"other-{number}", PAYLOAD, group="other")
            started.wait()
            delays.append((time.perf_counter() - offered_at) * 1000)
    table = Table(f"Start behind {options.backlog:,} of another group, ms", ("", "p50", "p99"))
    table.add("", f"{median(delays):.0f}", f"{percentile(delays, 99):.0f}")
    return table


if __name__ == "__main__":
    main()
