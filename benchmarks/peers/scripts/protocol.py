"""What every script answers to; it runs in the environments of the peers, so it imports no one.

``schema`` makes the tables; ``offer COUNT`` offers no-op jobs one by one and ``bulk COUNT`` by a
thousand, both print how long that took; ``pace COUNT RATE`` offers jobs that note when they were
started; ``work`` handles jobs until it is killed. The database is named by libpq's variables.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

TEXT = "x" * 90  # about 100 bytes of payload with what is around it
CHUNK = 1_000
OPTIONS: dict[str, Any] = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "1"))
GROUPS = int(os.environ.get("BENCH_GROUPS", "0"))
WARM_UP = 5  # offers before the clock starts: connections and caches


def main(
    schema: Callable[[], Any],
    offer: Callable[[int], float],
    bulk: Callable[[int], float],
    pace: Callable[[int, float], Any],
    work: Callable[[], Any],
) -> None:
    """Do what the command line says, and print what it took."""
    what, *counts = sys.argv[1:]
    if what in ("offer", "bulk"):
        count = int(counts[0])
        seconds = {"offer": offer, "bulk": bulk}[what](count)
        sys.stdout.write(json.dumps({"count": count, "seconds": seconds}) + "\n")
    elif what == "pace":
        pace(int(counts[0]), float(counts[1]))
    else:
        {"schema": schema, "work": work}[what]()


def one_by_one(count: int, offer: Callable[[], Any]) -> float:
    """Return the seconds of so many calls, after some to warm up."""
    for _ in range(min(WARM_UP, count)):
        offer()
    started_at = time.perf_counter()
    for _ in range(count):
        offer()
    return time.perf_counter() - started_at


async def aone_by_one(count: int, offer: Callable[[], Any]) -> float:
    """Return the seconds of so many awaited calls, after some to warm up."""
    for _ in range(min(WARM_UP, count)):
        await offer()
    started_at = time.perf_counter()
    for _ in range(count):
        await offer()
    return time.perf_counter() - started_at


def chunks(count: int) -> Iterator[int]:
    """Yield sizes of at most CHUNK that make up the count."""
    for start in range(0, count, CHUNK):
        yield min(CHUNK, count - start)


def in_chunks(count: int, offer: Callable[[int], Any]) -> float:
    started_at = time.perf_counter()
    for size in chunks(count):
        offer(size)
    return time.perf_counter() - started_at


async def ain_chunks(count: int, offer: Callable[[int], Any]) -> float:
    started_at = time.perf_counter()
    for size in chunks(count):
        await offer(size)
    return time.perf_counter() - started_at


def paced(count: int, rate: float) -> Iterator[float]:
    """Yield so many moments at irregular intervals around the rate."""
    for _ in range(count):
        time.sleep(random.uniform(0.5, 1.5) / rate)  # noqa: S311
        yield time.time()


async def apaced(count: int, rate: float) -> AsyncIterator[float]:
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.5, 1.5) / rate)  # noqa: S311
        yield time.time()


_numbers = itertools.count()


def group() -> str | None:
    """Return the group of the next job in bulk, all of them by turns; none where none are asked."""
    return f"group-{next(_numbers) % GROUPS}" if GROUPS else None


def is_observed() -> bool:
    return "handler_seconds" in OPTIONS


def observe(of: str) -> None:
    """Take the time that a handler is to take, and note of which group it was, and when."""
    begun_at = time.time()
    time.sleep(OPTIONS["handler_seconds"])
    _note(of, begun_at, time.time())


async def aobserve(of: str) -> None:
    begun_at = time.time()
    await asyncio.sleep(OPTIONS["handler_seconds"])
    _note(of, begun_at, time.time())


_stamps: list[int] = []


def stamp(offered_at: float) -> None:
    """Note when the handler of a job was started, and when the job was offered."""
    _note(offered_at, time.time())


def _note(*facts: object) -> None:
    if not _stamps:
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        _stamps.append(os.open(os.environ["BENCH_STAMPS"], flags))
    os.write(_stamps[0], (" ".join(map(str, facts)) + "\n").encode())
