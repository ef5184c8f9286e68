"""Changes by another session to a message, in a transaction that the test ends."""

from __future__ import annotations

from typing import Any

import psycopg

from delayed_queue import DelayedQueue
from delayed_queue.queue.store.claim import CLAIM, NO_FLOOR
from delayed_queue.queue.store.inspect import DROP
from delayed_queue.queue.store.offer import OFFER_IF_NOT_EXISTS, OFFER_OR_UPDATE

Connection = psycopg.Connection[Any]


def insert(connection: Connection, queue: DelayedQueue, key: str = "key", **values: Any) -> None:
    assert _offer(connection, OFFER_IF_NOT_EXISTS, queue, key, values) == [(True,)]


def update(connection: Connection, queue: DelayedQueue, key: str = "key", **values: Any) -> None:
    assert _offer(connection, OFFER_OR_UPDATE, queue, key, values) == [(False,)]


def drop(connection: Connection, queue: DelayedQueue) -> None:
    assert connection.execute(DROP, {"key": "key", "kind": queue.kind}).rowcount == 1


def lease_again(connection: Connection, queue: DelayedQueue, now: int) -> None:
    """Lease the first message for a minute."""
    params = {
        "kind": queue.kind, "limit": 1, "lease_id": "theirs", "retaken_id": "theirs",
        "lease": 60_000, "floor": NO_FLOOR, "floor_id": 0, "now": now,
    }  # fmt: skip
    assert len(connection.execute(CLAIM, params).fetchall()) == 1


def _offer(
    connection: Connection, statement: str, queue: DelayedQueue, key: str, values: dict[str, Any]
) -> list[Any]:
    params = {
        "kind": queue.kind, "key": key, "payload": b'"new"', "schedule_at": None, "delay": 0,
        "expires_at": None, "expires_in": None, "headers": None, "group": None, "now": None,
    }  # fmt: skip
    return connection.execute(statement, params | values).fetchall()
