"""Rows, readers, writers and table contents for the Spark tests."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest

from delayed_queue.spark.source.ledger import JobKey
from delayed_queue.spark.source.offering import Job, PartitionOffers
from delayed_queue.spark.source.options import parse_options

# Programs that end within minutes skip the optimising compiler: half the time.
BRISK: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# A small JVM that keeps no files and opens no ports.
QUIET: Final = {
    "spark__driver__extraJavaOptions": BRISK,
    "spark__driver__memory": "1g",
    "spark__ui__enabled": "false",
    "spark__sql__shuffle__partitions": "2",
    "spark__driver__bindAddress": "127.0.0.1",
    "spark__driver__host": "127.0.0.1",
    # On a busy machine a worker needs its time to start.
    "spark__python__authenticate__socketTimeout": "60s",
}
NOW: Final = 1_700_000_000_000

# Tests with a JVM; tests/conftest.py keeps them in one worker of xdist.
with_jvm = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]


def rows(keys: Iterable[str], payload: str = "1") -> pa.RecordBatch:
    """Offers in the form that Spark passes to a writer."""
    keys = list(keys)
    return pa.RecordBatch.from_pydict({"key": keys, "payload": [payload] * len(keys)})


def job(name: str = "job", now: int = NOW, batch: int = 0, **options: str) -> Job:
    return Job(JobKey(name, batch), now, parse_options({"queue": "orders", **options}))


def of_many(**options: str) -> Job:
    """A job whose rows name their queue."""
    return Job(JobKey("job"), NOW, parse_options(options))


def rows_of_many(*queues: str, payload: str = "1") -> pa.RecordBatch:
    """One key in several queues, with its own group in each."""
    return pa.RecordBatch.from_pydict(
        {
            "key": ["k"] * len(queues),
            "payload": [payload] * len(queues),
            "queue": list(queues),
            "group": [f"of {each}" for each in queues],
        }
    )


def owned() -> set[tuple[str, str, str | None]]:
    """Return key, kind and group of all messages."""
    from delayed_queue.models import Message

    return set(Message.objects.values_list("key", "kind", "group"))


def offer(given: Job, batches: Iterable[pa.RecordBatch], partition: int = 0) -> int:
    """Do the work of a task, without Spark."""
    return PartitionOffers(given, partition).offer_all(iter(batches))


def stored(connection: psycopg.Connection[Any]) -> list[tuple[str, str]]:
    found = connection.execute(
        """SELECT "pKey", convert_from(payload, 'UTF8') FROM delayed_queue ORDER BY id"""
    )
    return [(row[0], row[1]) for row in found]


def keys_of(connection: psycopg.Connection[Any]) -> list[str]:
    return [key for key, _ in stored(connection)]


def is_waiting_for(connection: psycopg.Connection[Any]) -> bool:
    """True if a session waits for a lock of this connection."""
    found = connection.execute(
        """SELECT count(*) FROM pg_locks
        WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid))"""
    ).fetchone()
    return found is not None and found[0] > 0


def wait_in_task(condition: Callable[[], bool]) -> None:
    """Wait inside a task, which has only this package."""
    pause = threading.Event()
    for _ in range(3000):
        if condition():
            return
        pause.wait(0.02)
    raise TimeoutError("the condition did not come about in time")


def failing_after(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The input of a task that dies after that many rows."""
    yield from batches
    raise OSError("the task was killed")
