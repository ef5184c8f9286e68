"""The commands of each peer's script, which runs in the peer's environment.

    schema            create the tables
    offer COUNT       offer jobs one by one; print the seconds
    bulk COUNT        offer jobs, 1,000 a call; print the seconds
    pace COUNT RATE   offer jobs at irregular intervals whose handler calls ``stamp``
    work              handle jobs until killed

libpq's variables name the database; ``BENCH_OPTIONS`` has the options of the contender.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

TEXT = "x" * 90  # with what is around it a payload of about 100 bytes
CHUNK = 1_000
WARM_UP = 5  # offers before the clock starts: connections and caches
OPTIONS: dict[str, Any] = json.loads(os.environ.get("BENCH_OPTIONS", "{}"))
PROCESSES = int(os.environ.get("BENCH_PROCESSES", "1"))
_numbers = itertools.count()
_stamps: list[int] = []


def main(
    schema: Callable[[], Any],
    offer: Callable[[Iterator[int]], Any],
    bulk: Callable[[Iterator[int]], Any],
    pace: Callable[[Iterator[float]], Any],
    work: Callable[[], Any],
    run: Callable[[Any], Any] = asyncio.run,
) -> None:
    """Run the command line; ``run`` runs the functions that are coroutines."""
    what, *numbers = sys.argv[1:]
    calls: dict[str, Callable[[], Any]] = {
        "schema": schema,
        "offer": lambda: offer(sizes(int(numbers[0]), 1)),
        "bulk": lambda: bulk(sizes(int(numbers[0]), CHUNK)),
        "pace": lambda: pace(moments(int(numbers[0]), float(numbers[1]))),
        "work": work,
    }
    done = calls[what]()
    if inspect.isawaitable(done):
        run(done)


def sizes(count: int, chunk: int) -> Iterator[int]:
    """Yield how many jobs each call is to offer; print at the end how long all calls took."""
    if chunk == 1:
        yield from [1] * WARM_UP
    began_at = time.perf_counter()
    for start in range(0, count, chunk):
        yield min(chunk, count - start)
    seconds = time.perf_counter() - began_at
    sys.stdout.write(json.dumps({"count": count, "seconds": seconds}) + "\n")


def moments(count: int, rate: float) -> Iterator[float]:
    """Yield the time at irregular intervals around the rate."""
    for _ in range(count):
        time.sleep(random.uniform(0.5, 1.5) / rate)  # noqa: S311
        yield time.time()


def key() -> str:
    return f"{os.getpid()}-{next(_numbers)}"


def group() -> str | None:
    """Return the group of the next job, all groups by turns; None without groups."""
    groups = OPTIONS.get("groups", 0)
    return f"group-{next(_numbers) % groups}" if groups else None


def stamp(offered_at: float) -> None:
    """Write down when a job was offered and when its handler was called."""
    if not _stamps:
        flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
        _stamps.append(os.open(os.environ["BENCH_STAMPS"], flags))
    os.write(_stamps[0], f"{offered_at} {time.time()}\n".encode())
