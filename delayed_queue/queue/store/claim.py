"""Claim due messages under a lease, or take them out in the transaction that handles them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, LiteralString, NamedTuple, TypeVar

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, rows_of, value_of
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    EXPIRES_AT,
    FIRST_ERROR,
    HEADERS,
    KIND_LOCK,
    LAST_ERROR,
    LEASED_COLUMNS,
    TAKEN_OVER,
)

if TYPE_CHECKING:
    from delayed_queue.db.sql import Row, Step


def select_due(
    *,
    kind: LiteralString = "%(kind)s",
    limited: LiteralString = "%(kind)s",
    until: LiteralString = "now",
    where: LiteralString = "",
) -> LiteralString:
    """Return a SELECT that locks the earliest due messages of a kind and returns their ids.

    It skips rows that others hold (Q17), and finds nothing while ``limited`` is paused or limited.
    Each of the two equal limits prevents a sort of all that is due. The hidden one, ``(SELECT …)``,
    is for a table that was never analyzed, the visible one for a table larger than the cache.
    Reads: delayed_queue__KindPlusScheduledAtIndex in order; limit_kind_group once.
    """
    return f"""
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue
        WHERE "pKind" = {kind}{where}
            AND "scheduledAt" <= (SELECT {until} FROM clock)
            AND NOT EXISTS (SELECT 1 FROM delayed_queue_limit WHERE "pKind" = {limited})
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS due
    LIMIT %(limit)s::integer"""


def select_due_of_kinds(*, limited: LiteralString) -> LiteralString:
    """Return a SELECT as ``select_due`` for several kinds, everything of one before the next.

    The loop over the kinds stops at the limit, so rows of later kinds are neither read nor locked.
    """
    return f"""
    SELECT due.id
    FROM unnest(%(kinds)b::text[]) AS asked (kind)
    CROSS JOIN LATERAL ({select_due(kind="asked.kind", limited=limited)}
    ) AS due
    LIMIT %(limit)s::integer"""


_RETAKEN: Final[LiteralString] = """"lockUuid" = %(retaken_id)s::varchar"""


def lease_due(
    due: LiteralString,
    *,
    lease_id: LiteralString = """CASE
        WHEN "lockUuid" IS NULL THEN %(lease_id)s::varchar ELSE %(retaken_id)s::varchar
    END""",
    lease: LiteralString = "%(lease)s::bigint",
    returning: LiteralString = f"""{LEASED_COLUMNS}, {_RETAKEN}, "group", "batchId\"""",
) -> LiteralString:
    """Return an UPDATE that leases the messages whose ids ``due`` selects, in no order.

    The ids are an ARRAY(…) InitPlan, which runs once, so the limit holds under every plan; as
    ``id IN (SELECT …)`` a nested loop may run it again and lease more (Q18). "dueAt" keeps the time
    that the lease overwrites. A message whose last lease ran out unsettled may have killed its
    worker: its lease gets an id of its own.
    Reads: as ``due``, then the primary key.
    """
    return f"""
UPDATE delayed_queue
SET "lockUuid" = {lease_id},
    "dueAt" = "scheduledAt",
    "scheduledAt" = (SELECT now FROM clock) + {lease},
    attempts = {ATTEMPTS} + 1,
    {TAKEN_OVER}
WHERE id = ANY (ARRAY({due}
))
RETURNING {returning}
"""


# With a floor a claim skips index entries of deleted messages: the caller knows that nothing
# earlier is left, and an old snapshot keeps every entry.
_FLOOR: Final[LiteralString] = """
            AND ("scheduledAt", id) >= (%(floor)s::bigint, %(floor_id)s::bigint)"""

# The claim waits for the lock of the kind, or finds nothing while another claim holds it. The lock
# is taken before the first row is read. A row that the holder before has leased is checked again
# when it is locked, so an older snapshot does no harm.
_ALONE: Final[LiteralString] = f"""
            AND (
                SELECT CASE
                    WHEN %(waits)s::boolean THEN pg_advisory_xact_lock({KIND_LOCK}) IS NOT NULL
                    ELSE pg_try_advisory_xact_lock({KIND_LOCK})
                END
            )"""

# Lease the earliest due messages from the floor on. Reads: as select_due and lease_due.
CLAIM: Final[LiteralString] = CLOCK + lease_due(select_due(where=_FLOOR))

# As CLAIM, one claim of a kind at a time. Two of CLAIM that meet two messages may get one each
# (N6).
# Reads: as CLAIM.
CLAIM_STRICT: Final[LiteralString] = CLOCK + lease_due(select_due(where=_FLOOR + _ALONE))

# As CLAIM for several kinds by rank. A pause of %(kind)s holds for all of them.
# Reads: as CLAIM, for each kind.
CLAIM_RANKED: Final[LiteralString] = CLOCK + lease_due(
    select_due_of_kinds(limited="%(kind)s"),
    returning=f"""{LEASED_COLUMNS}, {_RETAKEN}, "group", "batchId",
    array_position(%(kinds)b::text[], "pKind"::text)""",
)

# Take the lock of CLAIM_STRICT until the end of the transaction, if it is free. A caller learns by
# it whether nothing is due or another claim is under way. Reads: nothing.
TRY_LOCK: Final[LiteralString] = f"""
SELECT pg_try_advisory_xact_lock({KIND_LOCK})
"""

# For each kind with a message within the horizon, from its floor on: the milliseconds until the
# earliest is due, at most 0 when it is. One descent of the index for each kind.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE_OF_KINDS: Final[LiteralString] = f"""{CLOCK}
SELECT asked.kind, earliest.due_at - (SELECT now FROM clock)
FROM unnest(%(kinds)b::text[], %(floors)b::bigint[]) AS asked (kind, floor)
CROSS JOIN LATERAL (
    SELECT "scheduledAt" AS due_at
    FROM delayed_queue
    WHERE "pKind" = asked.kind
        AND "scheduledAt" >= asked.floor
        AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
    ORDER BY "scheduledAt", id
    LIMIT 1
) AS earliest
"""

# Milliseconds until the next message of the kinds that is not yet due; no row when none is within
# the horizon. Beyond it are dead index entries of handled leases, which an old snapshot keeps. Due
# messages are left out: one that another transaction holds would make its waiters spin.
# Reads: delayed_queue__KindPlusScheduledAtIndex, one descent for each kind.
NEXT_DUE: Final[LiteralString] = f"""{CLOCK}
SELECT min(earliest.due_at) - (SELECT now FROM clock)
FROM unnest(%(kinds)b::text[]) AS asked (kind)
CROSS JOIN LATERAL (
    SELECT "scheduledAt" AS due_at
    FROM delayed_queue
    WHERE "pKind" = asked.kind
        AND "scheduledAt" > (SELECT now FROM clock)
        AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
    ORDER BY "scheduledAt", id
    LIMIT 1
) AS earliest
HAVING count(*) > 0
"""

# Limit the wait for each lock until the transaction ends. Reads: nothing.
LIMIT_WAITS: Final[LiteralString] = """
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
"""

# Take out the earliest due messages in the transaction that handles them, without a lease: a
# rollback puts them back (Q30). Returns everything that RESTORE needs, in no order.
# Reads: as CLAIM.
CONSUME: Final[LiteralString] = f"""{CLOCK}
DELETE FROM delayed_queue
WHERE id = ANY (ARRAY({select_due(where=_FLOOR)}
))
RETURNING
    id, "pKey", payload, "scheduledAtInitially", "scheduledAt", "scheduledAt", {ATTEMPTS} + 1,
    ({HEADERS})::text, {EXPIRES_AT} - (SELECT now FROM clock), "lockUuid" IS NOT NULL, "createdAt",
    {FIRST_ERROR}, {LAST_ERROR}, "group", {EXPIRES_AT}, "batchId"
"""

# Put a consumed message back under a lease, in the transaction that took it, so that RELEASE or
# DEAD_LETTER can count the failure. Its key is free: other offers of it wait for the deletion.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
RESTORE: Final[LiteralString] = """
INSERT INTO delayed_queue (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "lockUuid",
    "createdAt", attempts, headers, "dueAt", "firstError", "lastError", "versionAt",
    "group", "expiresAt", "batchId"
)
VALUES (
    %(id)s, %(key)s, %(kind)s, %(payload)s::bytea, %(due_at)s, %(scheduled_at)s, %(lease_id)s,
    %(created_at)s, %(attempts)s, %(headers)s::jsonb, %(due_at)s, %(first_error)s, %(last_error)s,
    %(created_at)s, %(group)s, %(expires_at)s, %(batch_id)s
)
"""


class LeasedRow(NamedTuple):
    """A row as a claim returns it. A named tuple: it costs a third of a dataclass to make."""

    id: int
    key: str
    payload: bytes
    scheduled_at: int
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None
    # Milliseconds from the claim to the expiry.
    expires_in: int | None = None
    is_retaken: bool = False
    group: str | None = None
    batch_id: int | None = None


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
    expires_in: int | None
    is_retaken: bool
    created_at: int
    first_error: str | None
    last_error: str | None
    group: str | None
    expires_at: int | None
    batch_id: int | None


# Below any time: a claim from the start of the queue.
NO_FLOOR: Final = -(2**63 - 1)
# The savepoint before what the handler of a consumed message writes.
HANDLER: Final = "delayed_queue_handler"

_ORDER: Final = attrgetter("due_at", "id")

Taken = TypeVar("Taken", "LeasedRow", "ConsumedRow")


def claim_step(
    kind: str,
    limit: int,
    lease_id: str,
    retaken_id: str,
    lease: int,
    *,
    kinds: Sequence[str] = (),
    floor: int = NO_FLOOR,
    floor_id: int = 0,
    now: int | None = None,
    strict: bool = False,
    waits: bool = False,
) -> Step:
    """Lease up to ``limit`` of the earliest due messages from the floor on, for ``lease`` ms.

    Messages whose last lease ran out unsettled get ``retaken_id``, the others ``lease_id``. Returns
    rows of ``LeasedRow``, in no order. A strict claim waits for another one of the kind, or finds
    nothing. With ``kinds`` it claims from these, by rank and from the start of each; the limits of
    ``kind`` apply, and each row has one more column, the position of its kind.
    """
    params: dict[str, Any] = {
        "kind": kind, "limit": limit, "lease_id": lease_id, "retaken_id": retaken_id,
        "lease": lease, "now": now,
    }  # fmt: skip
    if kinds:
        return CLAIM_RANKED, params | {"kinds": list(kinds)}
    params |= {"floor": floor, "floor_id": floor_id}
    return (CLAIM_STRICT, params | {"waits": waits}) if strict else (CLAIM, params)


def try_lock_step(kind: str) -> Step:
    """Return whether a strict claim that follows in the same transaction can be made now."""
    return TRY_LOCK, {"kind": kind}


def limit_waits_step(milliseconds: int) -> Step:
    """Let the steps that follow fail when they wait longer for a lock."""
    return LIMIT_WAITS, {"milliseconds": milliseconds}


def next_due_step(kinds: Sequence[str], horizon: int, now: int | None = None) -> Step:
    """Return the milliseconds until the next message due within the horizon, if any."""
    return NEXT_DUE, {"kinds": list(kinds), "horizon": horizon, "now": now}


def earliest_first(rows: list[Taken]) -> list[Taken]:
    """Sort the rows of a claim in place."""
    rows.sort(key=_ORDER)
    return rows


def most_urgent_first(reply: Sequence[Row]) -> list[LeasedRow]:
    """Return the rows of a claim from several kinds by the rank of the kind, the last column."""
    rows = earliest_first(rows_of(LeasedRow, [row[:-1] for row in reply]))
    ranks = {row[0]: row[-1] for row in reply}
    rows.sort(key=lambda row: ranks[row.id])
    return rows


class ClaimStore:
    """The statements that lease messages or take them out in the handler's transaction."""

    def claim(
        self,
        kind: str,
        limit: int,
        lease_id: str,
        lease: int,
        *,
        strict: bool = False,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> list[LeasedRow]:
        """Lease up to ``limit`` of the earliest due messages, earliest first.

        A strict claim waits until no other of the kind is being made.
        """
        step = claim_step(
            kind, limit, lease_id, lease_id, lease, now=now, strict=strict, waits=True
        )
        return earliest_first(rows_of(LeasedRow, db.fetch(using, *step)))

    def next_due_of_kinds(
        self,
        kinds: Sequence[str],
        floors: Sequence[int],
        horizon: int,
        *,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> dict[str, int]:
        """Return the milliseconds until each kind has something due, by kind."""
        params = {"kinds": list(kinds), "floors": list(floors), "horizon": horizon, "now": now}
        return dict(db.fetch(using, NEXT_DUE_OF_KINDS, params))

    def next_due(
        self,
        kinds: Sequence[str],
        horizon: int,
        *,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> int | None:
        """Return the milliseconds until the next message, if it falls due within the horizon."""
        found: int | None = value_of(db.fetch(using, *next_due_step(kinds, horizon, now)))
        return found

    def limit_waits(self, milliseconds: int, *, using: str = db.DEFAULT_ALIAS) -> None:
        """Limit the wait for each lock until the open transaction ends."""
        db.fetch(using, *limit_waits_step(milliseconds))

    def consume(
        self, kind: str, limit: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> list[ConsumedRow]:
        """Delete and return up to ``limit`` of the earliest due messages.

        Sets the savepoint HANDLER behind the deletion, so that a handler's writes can be undone.
        """
        consume = _consume_step(kind, limit, (NO_FLOOR, 0), now)
        steps = [consume, (f"SAVEPOINT {HANDLER}", {})]
        rows, _ = db.run(using, steps, savepoint=False)
        return earliest_first(rows_of(ConsumedRow, rows))

    def take(
        self,
        kind: str,
        limit: int,
        *,
        floor: tuple[int, int] = (NO_FLOOR, 0),
        using: str = db.DEFAULT_ALIAS,
    ) -> list[ConsumedRow]:
        """Delete and return messages as ``consume``, from the floor on, without its savepoint."""
        rows = db.fetch(using, *_consume_step(kind, limit, floor, None))
        return earliest_first(rows_of(ConsumedRow, rows))

    def restore(
        self, kind: str, row: ConsumedRow, lease_id: str, *, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Put a consumed message back under a lease, in the transaction that took it."""
        db.execute(using, RESTORE, {**row._asdict(), "kind": kind, "lease_id": lease_id})


def _consume_step(kind: str, limit: int, floor: tuple[int, int], now: int | None) -> Step:
    at, floor_id = floor
    return CONSUME, {"kind": kind, "limit": limit, "floor": at, "floor_id": floor_id, "now": now}
