"""The JVM service that shares the table, simulated by its statements (Q36)."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from delayed_queue.messages import to_milliseconds
from delayed_queue.testing import ManualClock
from tests.queue.contract.support import MILLISECOND

KIND: Final = "7ab2b0dfa43e1a1f12169da88468fb53"
INSERT: Final = """
INSERT INTO "delayed_queue"
(
    "pKey",
    "pKind",
    "payload",
    "scheduledAt",
    "scheduledAtInitially",
    "createdAt"
)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT ("pKey", "pKind") DO NOTHING
"""
SELECT_FOR_UPDATE: Final = """
SELECT
    "id",
    "pKey",
    "pKind",
    "payload",
    "scheduledAt",
    "scheduledAtInitially",
    "lockUuid",
    "createdAt"
FROM "delayed_queue"
WHERE "pKey" = %s AND "pKind" = %s
LIMIT 1
FOR UPDATE
"""
GUARDED_UPDATE: Final = """
UPDATE "delayed_queue"
SET
    "payload" = %s,
    "scheduledAt" = %s,
    "scheduledAtInitially" = %s,
    "lockUuid" = %s,
    "createdAt" = %s
WHERE
    "pKey" = %s
    AND "pKind" = %s
    AND "scheduledAtInitially" = %s
    AND "createdAt" = %s
"""
SELECT_DUE: Final = """
SELECT
    "id",
    "pKey",
    "pKind",
    "payload",
    "scheduledAt",
    "scheduledAtInitially",
    "lockUuid",
    "createdAt"
FROM "delayed_queue"
WHERE "pKind" = %s AND "scheduledAt" <= %s
ORDER BY "scheduledAt"
LIMIT 1
FOR UPDATE SKIP LOCKED
"""
ACQUIRE: Final = """
UPDATE "delayed_queue"
SET "scheduledAt" = %s,
    "lockUuid" = %s
WHERE "pKey" = %s
  AND "pKind" = %s
  AND "scheduledAt" = %s
"""
ACKNOWLEDGE: Final = """
DELETE FROM "delayed_queue"
WHERE "lockUuid" = %s
"""
ACQUIRE_MANY: Final = """
UPDATE "delayed_queue"
SET
    "lockUuid" = %s,
    "scheduledAt" = %s
WHERE "id" IN (
    SELECT "id"
    FROM "delayed_queue"
    WHERE
        "pKind" = %s AND "scheduledAt" <= %s
    ORDER BY "scheduledAt"
    LIMIT %s
    FOR UPDATE SKIP LOCKED
)
"""
SELECT_LOCKED: Final = """
SELECT
    "id",
    "pKey",
    "pKind",
    "payload",
    "scheduledAt",
    "scheduledAtInitially",
    "lockUuid",
    "createdAt"
FROM "delayed_queue"
WHERE "lockUuid" = %s
ORDER BY "id"
LIMIT %s
"""


@dataclass
class Polled:
    key: str
    payload: str
    scheduled_at_initially: int
    lock: str


class JvmService:
    """The other service: the eight columns, epoch milliseconds, UTF-8 text."""

    def __init__(self, session: psycopg.Connection[Any], clock: ManualClock) -> None:
        self.session = session
        self.clock = clock

    @property
    def now(self) -> int:
        return to_milliseconds(self.clock())

    def offer(self, key: str, payload: str, at: datetime | None = None) -> str:
        """Insert, or else lock, compare and update, as the JVM does."""
        due_at = self.now if at is None else to_milliseconds(at)
        values = [key, KIND, payload.encode(), due_at, due_at, self.now]
        with self.session.transaction():
            if self.session.execute(INSERT, values).rowcount:
                return "Created"
            row = self.session.execute(SELECT_FOR_UPDATE, [key, KIND]).fetchone()
            assert row is not None
            if (bytes(row[3]), row[5]) == (payload.encode(), due_at):
                return "Ignored"
            guard = [key, KIND, row[5], row[7]]
            changed = [payload.encode(), due_at, due_at, None, self.now]
            assert self.session.execute(GUARDED_UPDATE, changed + guard).rowcount == 1
            return "Updated"

    def poll(self, lease: timedelta) -> Polled | None:
        lock = str(uuid.uuid4())
        with self.session.transaction():
            row = self.session.execute(SELECT_DUE, [KIND, self.now]).fetchone()
            if row is None:
                return None
            until = self.now + lease // MILLISECOND
            taken = self.session.execute(ACQUIRE, [until, lock, row[1], KIND, row[4]])
            assert taken.rowcount == 1
        return Polled(row[1], bytes(row[3]).decode(), row[5], lock)

    def poll_many(self, limit: int, lease: timedelta) -> list[Polled]:
        lock = str(uuid.uuid4())
        until = self.now + lease // MILLISECOND
        self.session.execute(ACQUIRE_MANY, [lock, until, KIND, self.now, limit])
        rows = self.session.execute(SELECT_LOCKED, [lock, limit]).fetchall()
        return [Polled(row[1], bytes(row[3]).decode(), row[5], lock) for row in rows]

    def acknowledge(self, lock: str) -> int:
        return self.session.execute(ACKNOWLEDGE, [lock]).rowcount

    def row(self, key: str) -> Any:
        found = self.session.execute(SELECT_FOR_UPDATE, [key, KIND]).fetchone()
        assert found is not None
        return found
