"""Messages without a group, beside the indexes of groups and without: ``benchmarks.ungrouped``.

The same code and the same table: before each short round the indexes are dropped or made anew, in
turns, so that what else the machine does falls on both. A ratio is of two rounds in a row.
"""

from __future__ import annotations

import sys
import time
from statistics import quantiles
from typing import Any, Final

import psutil
import psycopg

from benchmarks.database import OURS, PAYLOAD, benchmark_database, embedded_server, empty

ROUNDS: Final = 400
MESSAGES: Final = 2_000
BATCH: Final = 500
_INDEXES: Final = """
SELECT indexname, indexdef FROM pg_indexes WHERE indexname LIKE 'delayed\\_queue\\_\\_Group%'
"""


def main() -> None:
    """Offer, lease and acknowledge in both, and print what it takes with indexes over without."""
    with benchmark_database(embedded_server()) as connection:
        indexes = connection.execute(_INDEXES).fetchall()
        if len(indexes) != 3:
            raise RuntimeError(f"These are the indexes of groups: {indexes}.")
        _measured(connection)  # to warm up
        ratios, spent = [], {True: 0.0, False: 0.0}
        for number in range(ROUNDS):
            took = {}
            for has_indexes in (True, False) if number % 2 else (False, True):
                _set(connection, indexes, has_indexes=has_indexes)
                took[has_indexes], cpu = _measured(connection)
                spent[has_indexes] += cpu
            ratios.append(took[True] / took[False])
        low, middle, high = quantiles(ratios, n=4)
        sys.stdout.write(f"time: {middle:.3f} ({low:.2f} to {high:.2f})\n")
        sys.stdout.write(f"CPU time of both sides: {spent[True] / spent[False]:.3f}\n")


def _set(connection: psycopg.Connection[Any], indexes: list[Any], *, has_indexes: bool) -> None:
    empty(connection, OURS)
    for name, definition in indexes:
        connection.execute(f'DROP INDEX IF EXISTS "{name}"'.encode())
        if has_indexes:
            connection.execute(definition.encode())


def _measured(connection: psycopg.Connection[Any]) -> tuple[float, float]:
    """Return the seconds of offering, leasing and acknowledging so many messages, and of CPU."""
    from delayed_queue import DelayedQueue, ScheduledMessage

    empty(connection, OURS)
    queue = DelayedQueue("ungrouped", codec="bytes")
    messages = [ScheduledMessage(f"key-{number}", PAYLOAD) for number in range(MESSAGES)]
    cpu, started_at = _cpu_seconds(), time.perf_counter()
    for first in range(0, MESSAGES, BATCH):
        queue.offer_batch(messages[first : first + BATCH])
    taken = sum(queue.try_poll_many(BATCH).acknowledge() for _ in range(MESSAGES // BATCH))
    if taken != MESSAGES:
        raise RuntimeError(f"{taken} messages were taken, not {MESSAGES}.")
    return time.perf_counter() - started_at, _cpu_seconds() - cpu


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its session in the database."""
    from django.db import connection

    connection.ensure_connection()
    session = psutil.Process(connection.connection.info.backend_pid).cpu_times()
    return time.process_time() + session.user + session.system


if __name__ == "__main__":
    main()
