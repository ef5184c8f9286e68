"""How three commands grow: with rows, and with executors of one core each."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from benchmarks.figures import Table, say
from benchmarks.spark_handlers import fill
from benchmarks.spark_rivals import KIND
from delayed_queue.spark.commands import drains
from delayed_queue.spark.jobs.console import Console

if TYPE_CHECKING:
    from benchmarks.spark import Bench

WARM: Final = 20_000
Work = Callable[[int], Callable[[], object]]


def measure(bench: Bench, rows: list[int], executors: list[int]) -> Table:
    """Return rows a second of each command, for so many rows and executors."""
    table = Table(
        "Rows a second", ("command", "rows", *(f"{each} executors" for each in executors))
    )
    works: dict[str, Work] = {"archive": bench.archiving, "drain": _draining(bench),
                              "import": bench.importing}  # fmt: skip
    rates: dict[tuple[str, int, int], float] = {}
    for number in executors:
        bench.restart(f"local-cluster[{number},1,1024]")
        for name, prepare in works.items():
            for count in (WARM, *rows):
                rates[name, count, number] = _rate(prepare(count), count)
                say(f"{name} of {count:,} by {number}: {rates[name, count, number]:,.0f} rows/s")
    for name in works:
        for count in rows:
            found = [f"{rates[name, count, number]:,.0f}" for number in executors]
            table.rows.append((name, f"{count:,}", *found))
    return table


def _rate(work: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    work()
    return count / (time.perf_counter() - start)


def _draining(bench: Bench) -> Work:
    def prepare(count: int) -> Callable[[], object]:
        fill(bench.connection, count, one_is_old=False)
        lake = str(bench.directory / uuid4().hex)

        def work() -> None:
            console = Console(out=io.StringIO(), err=io.StringIO())
            asked = drains.DrainOptions(KIND, to=lake)
            found = drains.run(bench.spark(), asked, console, threading.Event())
            if found.messages != count:
                raise AssertionError(found)
            shutil.rmtree(lake)

        return work

    return prepare
