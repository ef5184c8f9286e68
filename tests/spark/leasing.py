"""A stream's leases driven as Spark drives them, and their effects on the table."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.spark.source.options import parse_options
from delayed_queue.spark.source.schema import read_schema
from delayed_queue.spark.source.stream import LeasingReader

FIVE = ReadMaxRows(5)


def reader(**options: str) -> LeasingReader:
    given = {"queue": "orders", "leaseConnections": "2", **options}
    parsed = parse_options(given)
    return LeasingReader(parsed, read_schema(parsed.kind))


def read(source: LeasingReader, start: Any, end: Any) -> list[str]:
    """Do the work of a batch's tasks."""
    found: list[str] = []
    for partition in source.partitions(start, end):
        for batch in source.read(partition):
            found.extend(batch["key"].to_pylist())
    return sorted(found)


def fill(queue: DelayedQueue, count: int) -> list[str]:
    keys = [f"k{each:03}" for each in range(count)]
    queue.offer_batch([ScheduledMessage(key, 1) for key in keys])
    return keys


def settled(source: LeasingReader) -> None:
    """Wait until the messages ahead are leased."""
    ahead = source.held().ahead
    assert ahead is not None
    ahead.result(60)


def under(lease_id: str) -> set[str]:
    return set(Message.objects.filter(lease_id=lease_id).values_list("key", flat=True))


def leased_until() -> Any:
    return Message.objects.order_by("scheduled_at")[0].scheduled_at


def expire(*keys: str) -> None:
    """Expire leases, the first key's first."""
    for number, key in enumerate(keys):
        Message.objects.filter(key=key).update(
            scheduled_at=Message.objects.get(key=key).created_at + timedelta(milliseconds=number)
        )
