"""The data source ``delayed_queue`` for PySpark: read, offer, and stream queues on a cluster.

Importing this package needs neither PySpark nor Django; its attributes do (PEP 562).

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
    from delayed_queue.spark.pipeline.lake import claim_lake as claim_lake
    from delayed_queue.spark.pipeline.lake import read_lake as read_lake
    from delayed_queue.spark.pipeline.session import build_session as build_session
    from delayed_queue.spark.pipeline.session import register as register
    from delayed_queue.spark.source.datasource import (
        DelayedQueueDataSource as DelayedQueueDataSource,
    )
    from delayed_queue.spark.source.leases import acknowledge_checkpoint as acknowledge_checkpoint
    from delayed_queue.spark.source.leases import drain as drain
    from delayed_queue.spark.source.ledger import Counts as Counts
    from delayed_queue.spark.source.ledger import counts as counts
    from delayed_queue.spark.source.reader import consistent_snapshot as consistent_snapshot

_HOMES = {
    "Counts": "source.ledger",
    "DelayedQueueDataSource": "source.datasource",
    "acknowledge_checkpoint": "source.leases",
    "build_session": "pipeline.session",
    "claim_lake": "pipeline.lake",
    "consistent_snapshot": "source.reader",
    "counts": "source.ledger",
    "drain": "source.leases",
    "dsn_from_django": "database",
    "read_lake": "pipeline.lake",
    "register": "pipeline.session",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
