"""Members of batches: offers that join one, and messages that leave theirs."""

from __future__ import annotations

from collections.abc import Sequence

from delayed_queue.db.sql import column_of, value_of
from delayed_queue.exceptions import BatchClosed
from delayed_queue.queue.store.finishing import (
    DROPPED,
    HOLD_BATCH,
    Joining,
    Leaving,
    count_step,
    finish_step,
)
from delayed_queue.spark.database import Connection, fetch
from delayed_queue.spark.store.offering import MOVE_UPDATED
from delayed_queue.spark.store.streaming import HAS_BATCHES, REMOVE_MEMBERS


def hold_batch(connection: Connection, batch: int | None) -> None:
    """Keep the batch open until the commit; raise BatchClosed if it is not open."""
    if batch is not None and not fetch(connection, HOLD_BATCH, Joining(batch)._asdict()):
        raise BatchClosed(f"The batch {batch} is closed or unknown; these rows were not offered.")


def move_updated(connection: Connection, batch: int, ids: Sequence[int]) -> None:
    """Move updated messages into the batch; they leave others as dropped."""
    members = [Leaving(each, None, DROPPED) for each in ids]
    left = fetch(connection, *count_step(members))
    fetch(connection, MOVE_UPDATED, {"batch": batch, "ids": list(ids)})
    fetch(connection, *finish_step(column_of(left)))


def has_batches(connection: Connection) -> bool:
    return bool(value_of(fetch(connection, HAS_BATCHES, {})))


def remove_members(connection: Connection, lease_id: str, expired_by: int | None = None) -> None:
    """Delete members of batches that are under the lease; they leave as done.

    With ``expired_by`` only those that had expired by then, as expired.
    """
    if not has_batches(connection):
        return
    params = {"lease_id": lease_id, "expired_by": expired_by}
    if left := fetch(connection, REMOVE_MEMBERS, params):
        fetch(connection, *finish_step(column_of(left)))
