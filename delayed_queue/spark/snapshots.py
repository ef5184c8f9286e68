"""One instant for all tasks of a read, for as long as the driver holds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from delayed_queue.spark.connecting import connect
from delayed_queue.spark.options import Options
from delayed_queue.spark.reader import REPEATABLE

# Let other transactions see what this one sees, while it lasts.
_EXPORT: Final = "SELECT pg_export_snapshot()"


@contextmanager
def consistent_snapshot(dsn: str | None = None) -> Iterator[str]:
    """Hold a transaction open whose view of the queue other reads can share; yield its name.

    Without it each task reads what is there when it begins. While it is held vacuum removes
    nothing that was deleted since, so not for longer than the read takes. Not through a pooler
    in transaction mode.

    >>> with consistent_snapshot() as name:
    ...     read = spark.read.format("delayed_queue").option("snapshot", name)
    ...     read.option("queue", "orders").load().write.parquet("orders")
    """
    session = connect(Options(), dsn=dsn)
    try:
        session.run(REPEATABLE)
        yield str(session.fetch(_EXPORT, {})[0][0])
    finally:
        session.close()
