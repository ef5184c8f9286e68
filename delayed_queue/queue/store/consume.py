"""Take messages out in a transaction, and put back what was not handled."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, rows_of
from delayed_queue.queue.store.claim import _EARLIEST_DUE, NO_FLOOR, earliest_first
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    FIRST_ERROR,
    HEADERS,
    LAST_ERROR,
)

# Take the earliest due messages out, inside the transaction that handles them: no lease is
# written, and a rollback puts them back (Q30). Everything needed by RESTORE is returned; the
# rows come in no order, as of CLAIM.
# Reads: as _EARLIEST_DUE, then the primary key.
CONSUME: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue
WHERE id = ANY (ARRAY("""
    + _EARLIEST_DUE
    + """
))
RETURNING
    id, "pKey", payload, "scheduledAtInitially", "scheduledAt", "scheduledAt", """
    + ATTEMPTS
    + """ + 1,
    ("""
    + HEADERS
    + """)::text, "lockUuid" IS NOT NULL, "createdAt", """
    + FIRST_ERROR
    + ", "
    + LAST_ERROR
    + """
"""
)

# Put one consumed message back under a lease, in the transaction that took it and whose
# handler failed, so that RELEASE or DEAD_LETTER can count the failure like any other.
# Its key is free: the deletion is ours and uncommitted, so any other offer of it waits.
RESTORE: Final[LiteralString] = """
INSERT INTO delayed_queue (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "lockUuid",
    "createdAt", attempts, headers, "dueAt", "firstError", "lastError", "versionAt"
)
VALUES (
    %(id)s, %(key)s, %(kind)s, %(payload)s::bytea, %(due_at)s, %(scheduled_at)s, %(lease_id)s,
    %(created_at)s, %(attempts)s, %(headers)s::jsonb, %(due_at)s, %(first_error)s, %(last_error)s,
    %(created_at)s
)
"""


class ConsumedRow(NamedTuple):
    """A row taken out by CONSUME: as leased, and what is needed to put it back."""

    id: int
    key: str
    payload: bytes
    scheduled_at: int
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None
    is_retaken: bool
    created_at: int
    first_error: str | None
    last_error: str | None


class ConsumeStore:
    """The statements that take messages out of a queue in the transaction that handles them."""

    def consume(
        self, kind: str, limit: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> list[ConsumedRow]:
        """Delete and return up to ``limit`` of the earliest due messages.

        The savepoint HANDLER is set behind it: what comes after can be undone, the deletion kept.
        """
        params = {"kind": kind, "limit": limit, "floor": NO_FLOOR, "now": now}
        return earliest_first(rows_of(ConsumedRow, db.fetch_and_save(using, CONSUME, params)))

    def take(
        self, kind: str, limit: int, *, floor: int = NO_FLOOR, using: str = db.DEFAULT_ALIAS
    ) -> list[ConsumedRow]:
        """Delete and return as consume() does, without its savepoint: all is undone or nothing."""
        params = {"kind": kind, "limit": limit, "floor": floor, "now": None}
        return earliest_first(rows_of(ConsumedRow, db.fetch_at_once(using, CONSUME, params)))

    def restore(
        self, kind: str, row: ConsumedRow, lease_id: str, *, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Put a consumed message back under a lease, in the transaction that took it."""
        db.execute(using, RESTORE, {**row._asdict(), "kind": kind, "lease_id": lease_id})
