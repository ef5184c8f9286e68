"""Claim due messages under a lease, or take them out in the transaction that handles them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple, TypeVar

from delayed_queue import db
from delayed_queue.db.sql import CLOCK, rows_of, value_of
from delayed_queue.queue.store.fragments import (
    ATTEMPTS,
    FIRST_ERROR,
    HEADERS,
    KIND_LOCK,
    LAST_ERROR,
    LEASED,
    LEASING,
)

if TYPE_CHECKING:
    from delayed_queue.db.sql import Step


# Lock the earliest due messages, passing rows that others hold (Q17), and return their ids.
# Two equal limits, against two mistakes of the planner. One it cannot see, (SELECT …), it takes
# for a tenth of the rows: on a table never analyzed it expects so few that it would rather sort
# all that are due than walk the index. One it can see tells it how few are wanted of a table
# larger than the cache, where a tenth would be worth a sort. The inner one locks the rows.
# "floor" and "floor_id" let a caller who knows that nothing earlier is left skip deleted entries:
# while any session holds an old snapshot, the index keeps an entry for each, and a claim from the
# start would read them all again. The id is for those of one instant, as a bulk import has them.
# Whether the queue is paused does not depend on the row: it is asked once, before the first.
# Reads: delayed_queue__KindPlusScheduledAtIndex in order, so no sort and no more rows than n;
# limit_kind_group, or the one page of that table.
_SELECTED: Final[LiteralString] = """
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND ("scheduledAt", id) >= (%(floor)s::bigint, %(floor_id)s::bigint)
                AND "scheduledAt" <= (SELECT now FROM clock)
                AND NOT EXISTS (SELECT 1 FROM delayed_queue_limit WHERE "pKind" = %(kind)s)"""
_IN_ORDER: Final[LiteralString] = """
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(limit)s::integer)
            FOR UPDATE SKIP LOCKED
        ) AS due
        LIMIT %(limit)s::integer"""
_EARLIEST_DUE: Final[LiteralString] = _SELECTED + _IN_ORDER

# Only once nobody else is claiming: waited for, or else no row is found. An InitPlan that is run
# before the first row is read. The snapshot is older than the lock, which does no harm: a row
# that the holder before us leased meanwhile is looked at again in its newest version when it is
# locked, and is not due any more; it does not count for the limit.
_ALONE: Final[LiteralString] = (
    """
                AND (
                    SELECT CASE
                        WHEN %(waits)s::boolean THEN pg_advisory_xact_lock("""
    + KIND_LOCK
    + """) IS NOT NULL
                        ELSE pg_try_advisory_xact_lock("""
    + KIND_LOCK
    + """)
                    END
                )"""
)

# Lease the earliest due messages. The inner select is an ARRAY(...) InitPlan, so it runs once
# and its LIMIT holds under every plan; as `id IN (SELECT …)` a nested loop may run it again and
# lease more than the limit (Q18). "dueAt" keeps the time the lease overwrites, for the order of
# the answer and for lateness. A message whose last lease ran out unsettled may have killed its
# worker: it gets a lease id of its own, by which a worker keeps it apart.
# The rows come in no order: sorting them is cheaper for the caller than a CTE is here.
# Reads: as _EARLIEST_DUE, then the primary key.
CLAIM: Final[LiteralString] = LEASING + _EARLIEST_DUE + LEASED

# The same, and no two at a time: of two claims of two that meet two messages, CLAIM may give
# each one, because each passes over what the other has just locked; here one gets both and the
# other none (N6). Still one statement. Reads: as CLAIM.
CLAIM_STRICT: Final[LiteralString] = LEASING + _SELECTED + _ALONE + _IN_ORDER + LEASED

# The same for several kinds by rank: what is due in one is taken before anything
# of the next. One descent for each kind, and no more rows than the limit. A pause of the
# first kind holds for all of them.
# Reads: as CLAIM, for each kind.
CLAIM_RANKED: Final[LiteralString] = (
    LEASING
    + """
        SELECT due.id
        FROM unnest(%(kinds)b::text[]) WITH ORDINALITY AS asked (kind, rank)
        CROSS JOIN LATERAL (
            SELECT id
            FROM (
                SELECT id
                FROM delayed_queue
                WHERE "pKind" = asked.kind
                    AND "scheduledAt" <= (SELECT now FROM clock)
                    AND NOT EXISTS (SELECT 1 FROM delayed_queue_limit WHERE "pKind" = %(kind)s)"""
    + _IN_ORDER
    + """
        ) AS due
        LIMIT %(limit)s::integer"""
    + """
))
RETURNING
    id, "pKey", payload, "scheduledAtInitially", "dueAt", "scheduledAt", attempts,
    headers::text, "lockUuid" = %(retaken_id)s::varchar,
    array_position(%(kinds)b::text[], "pKind"::text), "group"
"""
)

# Whether a strict claim may be made now; then the lock is ours until the transaction ends, and
# CLAIM_STRICT takes it again. For callers that must tell "nothing is due" from "not my turn".
TRY_ALONE: Final[LiteralString] = (
    """
SELECT pg_try_advisory_xact_lock("""
    + KIND_LOCK
    + """)
"""
)

# For each of the kinds that has a message within the horizon, from its floor on: the milliseconds
# until the earliest is due, none or fewer when it is. One descent for each kind, for workers that
# watch many queues of which most have nothing.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE_OF_KINDS: Final[LiteralString] = (
    CLOCK
    + """
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
)

# Milliseconds until the next message that is not yet due; no row when none is within the
# horizon, beyond which nobody asks: leases of handled messages leave entries there that are
# dead, and under an old snapshot every look would read them. Due messages are left out on
# purpose: one that another transaction holds would make its waiters spin.
# Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE: Final[LiteralString] = (
    CLOCK
    + """
SELECT "scheduledAt" - (SELECT now FROM clock)
FROM delayed_queue
WHERE "pKind" = %(kind)s
    AND "scheduledAt" > (SELECT now FROM clock)
    AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
ORDER BY "scheduledAt", id
LIMIT 1
"""
)

# NEXT_DUE of several kinds, the earliest of them. Reads: delayed_queue__KindPlusScheduledAtIndex.
NEXT_DUE_RANKED: Final[LiteralString] = (
    CLOCK
    + """
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
)

# Give up waiting for another transaction's lock after so many milliseconds, until the end of
# this transaction: an operator's page must not hang behind a handler that holds a message.
LIMIT_WAITS: Final[LiteralString] = """
SELECT set_config('lock_timeout', %(milliseconds)s::integer::text, true)
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
    is_retaken: bool = False
    group: str | None = None


class RankedRow(NamedTuple):
    """As LeasedRow, and the place of the row's kind among those that were asked."""

    id: int
    key: str
    payload: bytes
    scheduled_at: int
    due_at: int
    leased_until: int
    attempts: int
    headers: str | None
    is_retaken: bool
    rank: int
    group: str | None


# Below any time: a claim from the start of the queue.
NO_FLOOR: Final = -(2**63 - 1)

# The order of a claim.
_ORDER: Final = attrgetter("due_at", "id")
# Of several kinds, the place of its own first.
_RANKED: Final = attrgetter("rank", "due_at", "id")

Taken = TypeVar("Taken", "LeasedRow", "ConsumedRow")


def claiming(
    kind: str,
    limit: int,
    lease_id: str,
    retaken_id: str,
    lease: int,
    *,
    floor: int = NO_FLOOR,
    floor_id: int = 0,
    now: int | None = None,
    strict: bool = False,
    waits: bool = False,
) -> Step:
    """Lease up to ``limit`` of the earliest due messages from the floor on.

    Those whose last lease ran out unsettled come under ``retaken_id``, the others under
    ``lease_id``. Answered by rows as of ``LeasedRow``, in no order. A strict one is the only one
    at a time: it waits for its turn, or finds nothing when it is not.
    """
    params = {
        "kind": kind, "limit": limit, "lease_id": lease_id, "retaken_id": retaken_id,
        "lease": lease, "floor": floor, "floor_id": floor_id, "now": now,
    }  # fmt: skip
    return (CLAIM_STRICT, params | {"waits": waits}) if strict else (CLAIM, params)


def claiming_ranked(
    kind: str, kinds: Sequence[str], limit: int, lease_id: str, retaken_id: str, lease: int
) -> Step:
    """Lease as ``claiming`` does from several kinds, the first before the next.

    Whether they are paused is asked of ``kind``. Each row is a ``RankedRow``.
    """
    params = {
        "kind": kind, "kinds": list(kinds), "limit": limit, "lease_id": lease_id,
        "retaken_id": retaken_id, "lease": lease, "now": None,
    }  # fmt: skip
    return CLAIM_RANKED, params


def trying_alone(kind: str) -> Step:
    """Answered by whether a strict claim behind it, in the same transaction, has its turn."""
    return TRY_ALONE, {"kind": kind}


def earliest_first(rows: list[Taken]) -> list[Taken]:
    """Put the rows of a claim in order, in place."""
    rows.sort(key=_ORDER)
    return rows


def most_urgent_first(rows: list[RankedRow]) -> list[RankedRow]:
    """Put the rows of a claim from several kinds in order, in place: by kind, then as above."""
    rows.sort(key=_RANKED)
    return rows


def limiting_waits(milliseconds: int) -> Step:
    """Have waits for locks of the steps that follow fail after so long."""
    return LIMIT_WAITS, {"milliseconds": milliseconds}


def looking_ahead(kind: str, horizon: int) -> Step:
    """Answered by the milliseconds until the next message due within the horizon, if any."""
    return NEXT_DUE, {"kind": kind, "horizon": horizon, "now": None}


def looking_ahead_ranked(kinds: Sequence[str], horizon: int) -> Step:
    """Answered as ``looking_ahead``, about several kinds."""
    return NEXT_DUE_RANKED, {"kinds": list(kinds), "horizon": horizon, "now": None}


class ClaimStore:
    """The statements that lease messages."""

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
        statement, params = claiming(
            kind, limit, lease_id, lease_id, lease, now=now, strict=strict, waits=True
        )
        return earliest_first(rows_of(LeasedRow, db.fetch(using, statement, params)))

    def next_due_of_kinds(
        self,
        kinds: Sequence[str],
        floors: Sequence[int],
        horizon: int,
        *,
        now: int | None = None,
        using: str = db.DEFAULT_ALIAS,
    ) -> dict[str, int]:
        """Return the milliseconds until each of the kinds has something due, where it has."""
        params = {"kinds": list(kinds), "floors": list(floors), "horizon": horizon, "now": now}
        return dict(db.fetch(using, NEXT_DUE_OF_KINDS, params))

    def next_due(
        self, kind: str, horizon: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> int | None:
        """Return the milliseconds until the next message, if it falls due within the horizon."""
        params = {"kind": kind, "horizon": horizon, "now": now}
        found: int | None = value_of(db.fetch(using, NEXT_DUE, params))
        return found

    def limit_waits(self, milliseconds: int, *, using: str = db.DEFAULT_ALIAS) -> None:
        """Have waits for locks fail after so long, until the open transaction ends."""
        db.fetch(using, LIMIT_WAITS, {"milliseconds": milliseconds})


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
    + """, "group"
"""
)

# The savepoint before what the handler of a consumed message writes.
HANDLER: Final = "delayed_queue_handler"

# Put one consumed message back under a lease, in the transaction that took it and whose
# handler failed, so that RELEASE or DEAD_LETTER can count the failure like any other.
# Its key is free: the deletion is ours and uncommitted, so any other offer of it waits.
RESTORE: Final[LiteralString] = """
INSERT INTO delayed_queue (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "lockUuid",
    "createdAt", attempts, headers, "dueAt", "firstError", "lastError", "versionAt",
    "group"
)
VALUES (
    %(id)s, %(key)s, %(kind)s, %(payload)s::bytea, %(due_at)s, %(scheduled_at)s, %(lease_id)s,
    %(created_at)s, %(attempts)s, %(headers)s::jsonb, %(due_at)s, %(first_error)s, %(last_error)s,
    %(created_at)s, %(group)s
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
    group: str | None


class ConsumeStore:
    """The statements that take messages out of a queue in the transaction that handles them."""

    def consume(
        self, kind: str, limit: int, *, now: int | None = None, using: str = db.DEFAULT_ALIAS
    ) -> list[ConsumedRow]:
        """Delete and return up to ``limit`` of the earliest due messages.

        The savepoint HANDLER is set behind it: what comes after can be undone, the deletion kept.
        """
        params = {"kind": kind, "limit": limit, "floor": NO_FLOOR, "floor_id": 0, "now": now}
        rows, _ = db.fetch_all_at_once(using, [(CONSUME, params), (f"SAVEPOINT {HANDLER}", {})])
        return earliest_first(rows_of(ConsumedRow, rows))

    def take(
        self,
        kind: str,
        limit: int,
        *,
        floor: tuple[int, int] = (NO_FLOOR, 0),
        using: str = db.DEFAULT_ALIAS,
    ) -> list[ConsumedRow]:
        """Delete and return as consume() does, without its savepoint: all is undone or nothing."""
        at, floor_id = floor
        params = {"kind": kind, "limit": limit, "floor": at, "floor_id": floor_id, "now": None}
        return earliest_first(rows_of(ConsumedRow, db.fetch(using, CONSUME, params)))

    def restore(
        self, kind: str, row: ConsumedRow, lease_id: str, *, using: str = db.DEFAULT_ALIAS
    ) -> None:
        """Put a consumed message back under a lease, in the transaction that took it."""
        db.execute(using, RESTORE, {**row._asdict(), "kind": kind, "lease_id": lease_id})
