"""A writer that is killed, and what other engines count before and after its files are removed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb
import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.spark import read_lake
from delayed_queue.spark.pipeline import drains
from delayed_queue.spark.pipeline.files import SharedFiles
from delayed_queue.spark.pipeline.lake import orphans_of
from tests.spark.pipeline.test_faults import command
from tests.spark.pipelines import CONSOLE
from tests.spark.support import with_jvm
from tests.support.processes import kill_family, wait_until

pytestmark = [*with_jvm, pytest.mark.long]

# Enough for twenty tasks, of which one runs at a time.
COUNT: Final = 20_000
TASKS: Final = ["--partitions", "20", "--master", "local[1,4]"]


def fill(queue: DelayedQueue, count: int) -> None:
    queue.offer_batch([ScheduledMessage(f"k{each}", each) for each in range(count)])


def counted(lake: str) -> tuple[int, int]:
    """Rows and keys by an engine that lists files."""
    row = duckdb.execute(
        "SELECT count(*), count(DISTINCT key) FROM read_parquet(?)", [f"{lake}/kind=*/*/*.parquet"]
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def drain(spark: Any, lake: str, most: int = COUNT) -> None:
    asked = drains.DrainOptions("orders|json", to=lake, max_messages=most)
    drains.run(spark, asked, CONSOLE, threading.Event())


def test_of_a_writer_that_was_killed(queue: DelayedQueue, spark: Any, lake: str):
    fill(queue, COUNT)
    with command("drain", "--queue", "orders", "--to", lake, *TASKS) as process:
        wait_until(lambda: len(list(Path(lake).glob("kind=*/*/*.parquet"))) >= 2, seconds=200)
        assert process.poll() is None
        # It is at work: nothing of it is taken away.
        running = drains.sweep(spark, lake, is_removing=True)
        assert running.orphans.paths == ()
        assert running.orphans.undecided
        kill_family(process)
    left = {str(each) for each in Path(lake).glob("kind=*/*/*.parquet")}
    # Nobody can tell a dead one from one that stands still.
    assert set(drains.sweep(spark, lake, is_removing=True).orphans.undecided) == left
    drain(spark, lake)
    rows, keys = counted(lake)
    assert (rows > COUNT, keys) == (True, COUNT)
    named = drains.sweep(spark, lake, is_removing=False)
    assert set(named.orphans.paths) == left
    assert counted(lake) == (rows, keys)
    swept = drains.sweep(spark, lake, is_removing=True)
    assert swept.orphans == named.orphans
    assert f"{len(left):,} files removed" in swept.lines()[-1]
    assert counted(lake) == (COUNT, COUNT)
    assert read_lake(spark, lake).count() == COUNT
    assert not Message.objects.exists()


def test_nothing_is_taken_from_one_that_works(queue: DelayedQueue, spark: Any, lake: str):
    """Looked for without a pause, while twelve batches are written, the log of ten made one."""
    fill(queue, 600)
    with sweeping(lake) as taken:
        drain(spark, lake, most=50)
    assert taken == []
    assert counted(lake) == (600, 600)


@contextmanager
def sweeping(lake: str) -> Iterator[list[str]]:
    taken: list[str] = []
    ended = threading.Event()

    def work() -> None:
        files = SharedFiles()
        while not ended.is_set():
            taken.extend(orphans_of(files, lake).paths)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield taken
    finally:
        ended.set()
        thread.join()
