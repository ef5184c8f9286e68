"""Batches of messages: open, join, close and cancel them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from django.db import DEFAULT_DB_ALIAS, transaction

from delayed_queue.db.sql import CLOCK, array_of, column_of, value_of
from delayed_queue.db.statements import execute, fetch, run
from delayed_queue.queue.store.finishing import (
    DROPPED,
    HOLD_BATCH,
    Joining,
    finish_step,
    removed_step,
)
from delayed_queue.queue.store.fragments import IF_CHANGED, JOINED, REPLACE
from delayed_queue.queue.store.offer import Columns, Offered, batch_source

# Reads: nothing.
NEXT_BATCH: Final[LiteralString] = "SELECT nextval('delayed_queue_batch_id_seq')"

# Open a batch under an id of the sequence; a repetition finds it open.
# Reads: delayed_queue_batch_pkey.
OPEN_BATCH: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_batch (
    id, "pKind", "createdAt", "waitsForDead", "thenKind", "thenKey", "thenPayload", "thenHeaders",
    "thenGroup", "thenScheduledAt", "thenExpiresAt"
)
SELECT
    %(id)s::bigint, %(kind)s, now, %(waits)s::boolean, %(then_kind)s, %(key)s, %(payload)s::bytea,
    %(headers)s::jsonb, %(group)s::varchar, %(schedule_at)s::bigint, %(expires_at)s::bigint
FROM clock
ON CONFLICT (id) DO NOTHING
"""

_JOIN: Final[LiteralString] = f"""{CLOCK},
{JOINED},
offered AS ("""
_SOURCE: Final[LiteralString] = batch_source(
    "COALESCE(offered.schedule_at, (SELECT now FROM clock) + %(delay)s::bigint)",
    """COALESCE(
            offered.expires_at, (SELECT now FROM clock) + %(expires_in)s::bigint
        ) AS expires_at""",
    column=' "batchId",', value=" joined.batch,", joined="\nCROSS JOIN joined",
)  # fmt: skip

# One row without a key if nothing was written; no row if the batch cannot be joined.
_WRITTEN: Final[LiteralString] = """
)
SELECT offered."pKey", offered.created, offered."batchId"
FROM joined
LEFT JOIN offered ON true
"""

# As OFFER_BATCH_OR_UPDATE, into a batch. A message that is in another batch stays there, and its
# row names that batch; the caller moves it.
# Reads: delayed_queue_batch_pkey, the primary key, delayed_queue__PKeyPlusKindUniqueIndex.
JOIN_OR_UPDATE: Final[LiteralString] = f"""{_JOIN}{_SOURCE}{REPLACE},
    "batchId" = COALESCE(stored."batchId", EXCLUDED."batchId"){IF_CHANGED}
RETURNING "pKey", xmax = 0 AS created, "batchId"{_WRITTEN}"""

# As OFFER_BATCH_IF_NOT_EXISTS, into a batch. Reads: as JOIN_OR_UPDATE.
JOIN_IF_NOT_EXISTS: Final[LiteralString] = f"""{_JOIN}{_SOURCE}
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING "pKey", true AS created, "batchId"{_WRITTEN}"""

# Move messages into the batch; return the other batches that they leave, one for each message.
# Waits for a member that adds others to the batch it leaves.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex, the primary key.
MOVE_MEMBERS: Final[LiteralString] = """
WITH held AS MATERIALIZED (
    SELECT id, "batchId" AS batch
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND "pKey" = ANY (%(keys)b::text[])
    ORDER BY "pKey"
    FOR UPDATE
),
moved AS (
    UPDATE delayed_queue
    SET "batchId" = %(batch)s::bigint
    WHERE id = ANY (ARRAY(SELECT id FROM held))
)
SELECT batch
FROM held
WHERE batch <> %(batch)s::bigint
"""

# Close a batch, once its producers have committed. Reads: delayed_queue_batch_pkey.
CLOSE_BATCH: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue_batch
SET "closedAt" = (SELECT now FROM clock)
WHERE id = (
    SELECT id
    FROM delayed_queue_batch
    WHERE id = %(id)s::bigint
        AND "closedAt" IS NULL
    FOR UPDATE
)
RETURNING id
"""

# Delete a batch and its "then". Its members stay; their batch id stands for nothing.
# Reads: delayed_queue_batch_pkey.
CANCEL_BATCH: Final[LiteralString] = """
DELETE FROM delayed_queue_batch
WHERE id = %(id)s::bigint
"""


class BatchStore:
    """The statements of batches."""

    def next_id(self, *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Return the id of a batch to open."""
        found: int = value_of(fetch(using, NEXT_BATCH, {}))
        return found

    def open(
        self,
        batch_id: int,
        kind: str,
        then: Offered,
        *,
        waits: bool,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> int:
        """Open the batch, if an earlier try has not; return its id."""
        params = {
            "id": batch_id, "kind": kind, "waits": waits, "then_kind": then.kind, "key": then.key,
            "payload": then.payload, "headers": then.headers, "group": then.group,
            "schedule_at": then.schedule_at, "expires_at": then.expires_at, "now": now,
        }  # fmt: skip
        execute(using, OPEN_BATCH, params)
        return batch_id

    def join(
        self,
        joining: Joining,
        kind: str,
        offers: Columns,
        *,
        can_update: bool,
        delay: int = 0,
        expires_in: int | None = None,
        now: int | None = None,
        channel: str | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> dict[str, bool] | None:
        """Offer members as ``offer_batch`` does; None if the batch cannot be joined."""
        statement = JOIN_OR_UPDATE if can_update else JOIN_IF_NOT_EXISTS
        params = {
            **joining._asdict(), "kind": kind, "keys": offers.keys,
            "payloads": offers.payloads, "schedules": array_of(offers.schedules),
            "headers": array_of(offers.headers), "groups": array_of(offers.groups),
            "expiries": array_of(offers.expiries), "delay": delay, "expires_in": expires_in,
            "now": now,
        }  # fmt: skip
        channels = [] if channel is None else [channel]
        with transaction.atomic(using=using):
            (rows,) = run(using, [(statement, params)], channels)
            if not rows:
                return None
            written = [row for row in rows if row[0] is not None]
            elsewhere = [key for key, _, batch in written if batch != joining.batch_id]
            if elsewhere:
                self.move(joining.batch_id, kind, elsewhere, now=now, using=using)
        return {key: created for key, created, _ in written}

    def hold(self, joining: Joining, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Lock the batch until the transaction ends; False if it cannot be joined."""
        return bool(fetch(using, HOLD_BATCH, joining._asdict()))

    def move(
        self,
        batch_id: int,
        kind: str,
        keys: Sequence[str],
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> None:
        """Make messages members of a held batch; they leave other batches as dropped."""
        params = {"batch": batch_id, "kind": kind, "keys": list(keys)}
        left = column_of(fetch(using, MOVE_MEMBERS, params))
        if left:
            self.remove({(each, DROPPED): left.count(each) for each in left}, now=now, using=using)

    def pass_on(
        self, batch: int, key: str, kind: str, to_kind: str, *, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Make the message of a key in another kind the member, if that in this kind exists."""
        # MOVE_MEMBERS returns messages that leave another batch than 0, which does not exist.
        if fetch(using, MOVE_MEMBERS, {"batch": 0, "kind": kind, "keys": [key]}):
            for number, each in ((None, kind), (batch, to_kind)):
                fetch(using, MOVE_MEMBERS, {"batch": number, "kind": each, "keys": [key]})

    def close(
        self, batch_id: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> bool:
        """Close the batch and finish it if it has no members; True if it was open."""
        close = (CLOSE_BATCH, {"id": batch_id, "now": now})
        closed, _ = run(using, [close, finish_step([batch_id], now)])
        return bool(closed)

    def cancel(self, batch_id: int, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Delete the batch; its members become ordinary messages. True if it existed."""
        return execute(using, CANCEL_BATCH, {"id": batch_id}) > 0

    def remove(
        self,
        numbers: dict[tuple[int, str], int],
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> None:
        """Count members that the open transaction has removed, by batch and outcome."""
        batches: Sequence[int] = [batch for batch, _ in numbers]
        run(using, [removed_step(numbers), finish_step(set(batches), now)])

    def sweep(self, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Finish closed batches whose last members were removed by others."""
        fetch(using, *finish_step(None))
