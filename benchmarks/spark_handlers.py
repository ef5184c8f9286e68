"""Handlers on Spark: how even their tasks are, and how near to all calls at once they come."""

from __future__ import annotations

import asyncio
import io
import shutil
import threading
import time
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from benchmarks.spark_rivals import KIND
from delayed_queue.messages import Envelope
from delayed_queue.spark.pipeline import drains
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.handling import Handling

QUICK: Final = 0.005
SLOW: Final = 0.05
# As far as a queue has come when its oldest message was offered long ago.
_FAR: Final = 500_000_000
_FILL: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT 'k' || number, %(kind)s, '\\x31', 0, 0, 0
FROM generate_series(1, %(count)s::integer) AS number
ORDER BY number
"""


def quick(envelope: Envelope) -> None:
    time.sleep(QUICK)


async def slow(envelope: Envelope) -> None:
    await asyncio.sleep(SLOW)


def fill(connection: psycopg.Connection[Any], count: int, *, one_is_old: bool) -> None:
    """Store due messages; if asked, with as many ids between the first and the others as can be."""
    connection.execute("TRUNCATE delayed_queue RESTART IDENTITY")
    first = 1 if one_is_old else 0
    if one_is_old:
        connection.execute(_FILL.replace("'k'", "'old'"), {"kind": KIND, "count": 1})
        connection.execute("SELECT setval('delayed_queue_id_seq', %s)", (_FAR,))
    connection.execute(_FILL, {"kind": KIND, "count": count - first})
    connection.execute("VACUUM ANALYZE delayed_queue")


def handle(spark: Any, directory: Path, name: str, count: int, concurrency: int = 1) -> None:
    """Drain the queue by one of these handlers, as the command does; check that none is left."""
    place = directory / uuid4().hex
    handling = Handling(f"{__name__}:{name}", KIND, "bytes", concurrency=concurrency)
    asked = drains.DrainOptions(KIND, str(place), handling=handling)
    console = Console(out=io.StringIO(), err=io.StringIO())
    found = drains.run(spark, asked, console, threading.Event())
    shutil.rmtree(place)
    if found.tally is None or found.tally.done != count:
        raise AssertionError(found)
