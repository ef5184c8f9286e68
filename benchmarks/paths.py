"""Calls through Django's cursors beside the package's own session: ``python -m benchmarks.paths``.

The same calls on a plain connection and on one with an execute wrapper, in turns.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from statistics import median
from typing import Any, Final

from benchmarks.database import PAYLOAD, benchmark_database, embedded_server, empty

ROUNDS: Final = 5
CALLS: Final = 1_000
BATCH: Final = 100


def main() -> None:
    """Print how many messages a second each call handles on either path, and the ratio."""
    with benchmark_database(embedded_server()) as connection:
        found: dict[str, tuple[list[float], list[float]]] = {}
        for _ in range(ROUNDS):
            empty(connection, "delayed_queue")
            for path, watched in enumerate((False, True)):
                for name, rate in _rates(f"path{path}", watched).items():
                    found.setdefault(name, ([], []))[path].append(rate)
    for name, (plain, cursors) in found.items():
        ratio = median(cursors) / median(plain)
        sys.stdout.write(
            f"| {name} | {median(plain):,.0f} | {median(cursors):,.0f} | {ratio:.2f} |\n"
        )


def _rates(queue_name: str, is_watched: bool) -> dict[str, float]:
    # Only now: Django's models cannot be imported before there are settings.
    from django.db import connections

    from delayed_queue import DelayedQueue, ScheduledMessage

    queue = DelayedQueue(queue_name, codec="bytes")
    numbers = itertools.count()
    wrapper: Any = connections["default"].execute_wrapper(_through) if is_watched else nullcontext()
    with wrapper:
        return {
            "`offer_or_update`": _rate(lambda n: queue.offer_or_update(f"{n}", PAYLOAD), CALLS, 1),
            "`try_poll` + `acknowledge`": _rate(lambda _: _taken(queue.try_poll_many(1)), CALLS, 1),
            f"`offer_batch` of {BATCH}": _rate(
                lambda _: queue.offer_batch(
                    [ScheduledMessage(f"many-{next(numbers)}", PAYLOAD) for _ in range(BATCH)]
                ),
                CALLS // BATCH,
                BATCH,
            ),
        }


def _through(execute: Callable[..., Any], *call: Any) -> Any:
    return execute(*call)


def _taken(batch: Any) -> None:
    if not batch.acknowledge():
        raise RuntimeError("Nothing was acknowledged.")


def _rate(call: Callable[[int], object], calls: int, messages: int) -> float:
    started = time.perf_counter()
    for number in range(calls):
        call(number)
    return calls * messages / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
