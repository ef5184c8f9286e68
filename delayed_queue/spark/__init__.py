"""The data source ``delayed_queue`` for PySpark: read, offer, and stream queues on a cluster.

Importing this package needs neither PySpark nor Django; what is asked of it does (PEP 562).

>>> from delayed_queue.spark import build_session, counts
>>> spark = build_session("campaign")
>>> messages = spark.createDataFrame([("order-1", '{"id": 1}')], "key string, payload string")
>>> messages.write.format("delayed_queue").option("queue", "orders").mode("append").save()
>>> spark.read.format("delayed_queue").option("queue", "orders").load().show()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayed_queue.spark.database import dsn_from_django as dsn_from_django
    from delayed_queue.spark.jobs.lakes import claim_lake as claim_lake
    from delayed_queue.spark.jobs.lakes import read_lake as read_lake
    from delayed_queue.spark.leases import acknowledge_checkpoint as acknowledge_checkpoint
    from delayed_queue.spark.leases import drain as drain
    from delayed_queue.spark.ledger import Counts as Counts
    from delayed_queue.spark.ledger import counts as counts
    from delayed_queue.spark.reader import consistent_snapshot as consistent_snapshot
    from delayed_queue.spark.session import build_session as build_session
    from delayed_queue.spark.session import register as register
    from delayed_queue.spark.source import DelayedQueueDataSource as DelayedQueueDataSource

_HOMES = {
    "Counts": "ledger",
    "DelayedQueueDataSource": "source",
    "acknowledge_checkpoint": "leases",
    "build_session": "session",
    "claim_lake": "jobs.lakes",
    "consistent_snapshot": "reader",
    "counts": "ledger",
    "drain": "leases",
    "dsn_from_django": "database",
    "read_lake": "jobs.lakes",
    "register": "session",
}

__all__ = [
    "Counts",
    "DelayedQueueDataSource",
    "acknowledge_checkpoint",
    "build_session",
    "claim_lake",
    "consistent_snapshot",
    "counts",
    "drain",
    "dsn_from_django",
    "read_lake",
    "register",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
