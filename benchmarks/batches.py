"""Batches of messages: ``python -m benchmarks.batches``.

A worker that drains members of one batch beside the same messages without a batch; offers and
polls of the first and the last members of a large batch; and the time from the end of the last
member's handler to the start of the handler of ``then``.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.shared.database import Connection, benchmark_database, empty
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import in_turns, percentile, ratio, spread
from benchmarks.shared.workers import worker_for, working

QUEUE: Final = "benchmark"
THEN: Final = "reports"
CHUNK: Final = 1_000
# Chunks at each end of the large batch that are compared.
COMPARED: Final = 20
# Members of the batches whose "then" is awaited.
SMALL: Final = 10


def main() -> None:
    """Measure draining, growth and the delay of ``then``."""
    options = Options(".batches", __doc__).size("rounds", 5, 1, "rounds of each drain")
    options.size("drained", 50_000, 2_000, "messages of a drain")
    options.size("members", 1_000_000, 50_000, "members of the large batch")
    parsed = options.size("batches", 500, 20, "batches whose then is awaited").parse()
    with benchmark_database(parsed.database_url) as connection:
        report = Report(describe(connection))
        report.tables = [
            _drains(connection, parsed.drained, parsed.rounds),
            _growth(connection, parsed.members),
            _delays(connection, parsed.batches),
        ]
    report.write(parsed)


def _queue(name: str = QUEUE) -> Any:
    from delayed_queue import DelayedQueue

    return DelayedQueue(name, codec="bytes")


def _batch() -> Any:
    from delayed_queue import ScheduledMessage

    return _queue().batch(ScheduledMessage("then", b"1"), then_queue=_queue(THEN))


def _offer(target: Any, start: int, count: int) -> None:
    from delayed_queue import ScheduledMessage

    for at in range(start, start + count, CHUNK):
        numbers = range(at, min(at + CHUNK, start + count))
        target.offer_batch(ScheduledMessage(f"key-{n}", b"x" * 100) for n in numbers)


def _drains(connection: Connection, count: int, rounds: int) -> Table:
    ways = {
        name: partial(_drain, connection, count, is_batch=name == "members")
        for name in ("members", "messages")
    }
    found = in_turns(rounds, ways)
    table = Table("Drained by a worker, a second", ("of", "messages/s", "members, compared"))
    for name, rates in found.items():
        table.add(name, spread(rates), f"{ratio(found['members'], rates):.2f}")
    return table


def _drain(connection: Connection, count: int, *, is_batch: bool) -> float:
    empty(connection)
    if is_batch:
        with _batch() as batch:
            _offer(batch, 0, count)
    else:
        _offer(_queue(), 0, count)
    connection.execute("VACUUM ANALYZE delayed_queue")
    worker = worker_for(QUEUE, lambda _: None, burst=True)
    started_at = time.perf_counter()
    worker.run()
    rate = count / (time.perf_counter() - started_at)
    if _queue(THEN).contains_message("then") is not is_batch:
        raise RuntimeError("then was not offered as expected.")
    return rate


def _growth(connection: Connection, count: int) -> Table:
    """Time offers and polls of each chunk of one batch; compare both ends."""
    empty(connection)
    with _batch() as batch:
        offers = [_timed(partial(_offer, batch, at, CHUNK)) for at in range(0, count, CHUNK)]
    connection.execute("VACUUM ANALYZE delayed_queue")
    queue = _queue()
    polls = [_timed(queue.try_poll_many(CHUNK).acknowledge) for _ in range(count // CHUNK)]
    table = Table(
        f"{count:,} members, ms for {CHUNK:,}", ("work", "first", "last", "last, compared")
    )
    for name, spent in (("offer_batch", offers), ("poll, acknowledge", polls)):
        # The first call connects.
        first, last = median(spent[1 : COMPARED + 1]), median(spent[-COMPARED:])
        table.add(name, f"{first:.1f}", f"{last:.1f}", f"{last / first:.2f}")
    return table


def _timed(work: Any) -> float:
    started_at = time.perf_counter()
    work()
    return (time.perf_counter() - started_at) * 1000


def _delays(connection: Connection, count: int) -> Table:
    """Time from the return of a batch's last handler to the call for its ``then``."""
    empty(connection)
    ended: deque[float] = deque()
    called: deque[float] = deque()
    has_followed = threading.Semaphore(0)

    def follow(_: object) -> None:
        called.append(time.perf_counter())
        has_followed.release()

    members = worker_for(QUEUE, lambda _: ended.append(time.perf_counter()))
    delays = []
    with working(members), working(worker_for(THEN, follow)):
        for number in range(count):
            with _batch() as batch:
                _offer(batch, number * SMALL, SMALL)
            has_followed.acquire()
            delays.append((called.pop() - ended.pop()) * 1000)
    table = Table("From the end of the last member to its then, ms", ("p50", "p99", "maximum"))
    table.add(f"{median(delays):.1f}", f"{percentile(delays, 99):.1f}", f"{max(delays):.1f}")
    return table


if __name__ == "__main__":
    main()
