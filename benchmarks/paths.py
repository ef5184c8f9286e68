"""Our own session beside Django's cursors: ``python -m benchmarks.paths``.

The same calls on a plain connection and on one with an execute wrapper, in turns.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.shared.database import PAYLOAD, benchmark_database
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import in_turns, ratio

BATCH: Final = 100


def main() -> None:
    """Measure messages a second of each call on either path."""
    options = Options(".paths", __doc__).size("rounds", 5, 1, "rounds of each path")
    parsed = options.size("calls", 1_000, 100, "calls of a round").parse()
    with benchmark_database(parsed.database_url) as connection:
        report = Report(describe(connection))
        table = Table("Messages a second", ("call", "own session", "Django's cursors", "ratio"))
        for name, call, messages in _calls():
            ways = {
                path: partial(_rate, call, parsed.calls, messages, path)
                for path in ("own", "cursors")
            }
            found = in_turns(parsed.rounds, ways)
            own, cursors = found["own"], found["cursors"]
            rates = (f"{median(own):,.0f}", f"{median(cursors):,.0f}")
            table.add(name, *rates, f"{ratio(cursors, own):.2f}")
    report.tables.append(table)
    report.write(parsed)


def _calls() -> list[tuple[str, Callable[[], object], int]]:
    """Return each call with the number of its messages; the poll takes what the offer stored."""
    from delayed_queue import DelayedQueue, ScheduledMessage

    queue, many = DelayedQueue("paths", codec="bytes"), DelayedQueue("batches", codec="bytes")
    numbers = itertools.count()

    def take() -> None:
        if not queue.try_poll_many(1).acknowledge():
            raise RuntimeError("Nothing was acknowledged.")

    def offer_batch() -> None:
        many.offer_batch(ScheduledMessage(f"{next(numbers)}", PAYLOAD) for _ in range(BATCH))

    return [
        ("`offer_or_update`", lambda: queue.offer_or_update(f"{next(numbers)}", PAYLOAD), 1),
        ("`try_poll` + `acknowledge`", take, 1),
        (f"`offer_batch` of {BATCH}", offer_batch, BATCH),
    ]


def _rate(call: Callable[[], object], calls: int, messages: int, path: str) -> float:
    from django.db import connections

    wrapper: Any = nullcontext()
    if path == "cursors":
        wrapper = connections["default"].execute_wrapper(lambda execute, *args: execute(*args))
    count = max(calls // messages, 1)
    with wrapper:
        started_at = time.perf_counter()
        for _ in range(count):
            call()
        return count * messages / (time.perf_counter() - started_at)


if __name__ == "__main__":
    main()
