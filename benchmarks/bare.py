"""The limit: the same work in hand-written SQL over psycopg, with nothing around it."""

from __future__ import annotations

import time
import uuid
from typing import Any, Final, LiteralString

import psycopg

Row = tuple[Any, ...]

OFFER: Final[LiteralString] = """
INSERT INTO bare_queue AS stored (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
VALUES (%s, %s, %s, %s, %s, %s)
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
    "createdAt" = EXCLUDED."createdAt",
    "lockUuid" = NULL
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
RETURNING xmax = 0
"""
COPY: Final[LiteralString] = """
COPY bare_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
FROM STDIN (FORMAT binary)
"""
COPY_TYPES: Final = ("varchar", "varchar", "bytea", "int8", "int8", "int8")
CLAIM: Final[LiteralString] = """
UPDATE bare_queue
SET "lockUuid" = %s,
    "scheduledAt" = %s
WHERE id = ANY (ARRAY(
    SELECT id
    FROM bare_queue
    WHERE "pKind" = %s
        AND "scheduledAt" <= %s
    ORDER BY "scheduledAt", id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
))
RETURNING id, "pKey", payload, "scheduledAtInitially", "scheduledAt"
"""
CONSUME: Final[LiteralString] = """
DELETE FROM bare_queue
WHERE id = ANY (ARRAY(
    SELECT id
    FROM bare_queue
    WHERE "pKind" = %s
        AND "scheduledAt" <= %s
    ORDER BY "scheduledAt", id
    LIMIT %s
    FOR UPDATE SKIP LOCKED
))
RETURNING id, "pKey", payload, "scheduledAtInitially", "scheduledAt"
"""
ACKNOWLEDGE: Final[LiteralString] = 'DELETE FROM bare_queue WHERE id = %s AND "lockUuid" = %s'
ACKNOWLEDGE_LEASE: Final[LiteralString] = 'DELETE FROM bare_queue WHERE "lockUuid" = %s'
NOTIFY: Final[LiteralString] = "SELECT pg_notify('benchmark', '')"
LEASE_MS: Final = 300_000


class BareQueue:
    """One connection in autocommit, one cursor: prepared statements, binary values."""

    def __init__(self, connection: psycopg.Connection[Any], kind: str) -> None:
        self._cursor = connection.cursor(binary=True)
        self._kind = kind

    def offer(self, key: str, payload: bytes) -> bool:
        now = _now()
        self._run(OFFER, (key, self._kind, payload, now, now, now))
        return bool(self._cursor.fetchone())

    def notify(self) -> None:
        self._run(NOTIFY, ())

    def copy(self, messages: list[tuple[str, bytes]]) -> None:
        now, kind = _now(), self._kind
        with self._cursor.copy(COPY) as copy:
            copy.set_types(COPY_TYPES)
            for key, payload in messages:
                copy.write_row((key, kind, payload, now, now, now))

    def claim(self, limit: int) -> tuple[str, list[Row]]:
        """Lease up to ``limit`` messages; return the lease id and the rows."""
        now, lease_id = _now(), str(uuid.uuid4())
        self._run(CLAIM, (lease_id, now + LEASE_MS, self._kind, now, limit))
        return lease_id, self._cursor.fetchall()

    def acknowledge(self, row_id: int, lease_id: str) -> int:
        self._run(ACKNOWLEDGE, (row_id, lease_id))
        return self._cursor.rowcount

    def acknowledge_lease(self, lease_id: str) -> int:
        self._run(ACKNOWLEDGE_LEASE, (lease_id,))
        return self._cursor.rowcount

    def begin(self) -> None:
        self._cursor.execute("BEGIN")

    def consume(self, limit: int) -> list[Row]:
        self._run(CONSUME, (self._kind, _now(), limit))
        return self._cursor.fetchall()

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def _run(self, statement: LiteralString, params: tuple[Any, ...]) -> None:
        self._cursor.execute(statement, params, prepare=True)


def _now() -> int:
    return time.time_ns() // 1_000_000
