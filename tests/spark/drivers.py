"""Spark drivers as separate processes, and the queues they drain."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from delayed_queue import DelayedQueue, ScheduledMessage
from tests.support.processes import ROOT, Process, killed_at_last

LOCAL = "127.0.0.1"
TIMEOUT = 300


def environment(**variables: str) -> dict[str, str]:
    wanted = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": LOCAL}
    return {**os.environ, **wanted, **variables}


@contextmanager
def program(name: str, *arguments: str, **variables: str) -> Iterator[Process]:
    """Run one of the drivers; kill it and its children at the end."""
    module = f"tests.spark.programs.{name}"
    with started(sys.executable, "-m", module, *arguments, **variables) as process:
        yield process


@contextmanager
def started(*command: str, **variables: str) -> Iterator[Process]:
    with killed_at_last(Process(*command, env=environment(**variables))) as process:
        yield process


def finish(process: Process) -> str:
    code, output = process.ended(TIMEOUT)
    assert code == 0, output
    return output


def fill(count: int, *names: str) -> list[str]:
    keys = [f"k{each:03}" for each in range(count)]
    for name in names:
        DelayedQueue(name).offer_batch([ScheduledMessage(key, 1) for key in keys])
    return keys


def in_lake(directory: Path) -> Counter[str]:
    """Return the count of each key in the Parquet files that the sink has committed.

    Another engine than the writer reads them.
    """
    log = directory / "_spark_metadata"
    files = {each.name: each for each in directory.rglob("*.parquet")}
    if log.exists():
        text = "".join(each.read_text() for each in log.iterdir() if each.name.isdigit())
        files = {name: each for name, each in files.items() if name in text}
    if not files:
        return Counter()
    keys = "SELECT key, count(*) FROM read_parquet(?) GROUP BY key"
    return Counter(dict(duckdb.execute(keys, [[str(each) for each in files.values()]]).fetchall()))
