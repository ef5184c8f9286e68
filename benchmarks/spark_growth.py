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
from benchmarks.spark_memory import Memory
from benchmarks.spark_rivals import KIND
from delayed_queue.spark.pipeline import drains
from delayed_queue.spark.pipeline.console import Console

if TYPE_CHECKING:
    from benchmarks.spark import Bench

WARM: Final = 20_000
Work = Callable[[int], Callable[[], object]]


def measure(bench: Bench, rows: list[int], executors: list[int]) -> Table:
    """Return rows a second of each command, and the memory it took, for so many rows and executors.

    Memory is that of the driver and of the largest executor, each with its Python processes.
    """
    heads = (f"{each} executors, MiB of driver and executor" for each in executors)
    table = Table("Rows a second", ("command", "rows", *heads))
    works: dict[str, Work] = {"archive": bench.archiving, "drain": _draining(bench),
                              "import": bench.importing}  # fmt: skip
    cells: dict[tuple[str, int, int], str] = {}
    for number in executors:
        bench.restart(f"local-cluster[{number},1,1024]")
        for name, prepare in works.items():
            for count in (WARM, *rows):
                cells[name, count, number] = _cell(prepare(count), count)
                say(f"{name} of {count:,} by {number}: {cells[name, count, number]}")
    for name in works:
        for count in rows:
            found = [cells[name, count, number] for number in executors]
            table.rows.append((name, f"{count:,}", *found))
    return table


def _cell(work: Callable[[], object], count: int) -> str:
    with Memory() as memory:
        start = time.perf_counter()
        work()
        rate = count / (time.perf_counter() - start)
    return f"{rate:,.0f}, {memory.driver:,} and {memory.executor:,}"


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
