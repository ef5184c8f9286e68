"""Count the members that leave their batches, and finish batches without members."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple, Protocol

from delayed_queue import db
from delayed_queue.db.sql import CLOCK
from delayed_queue.queue.store.fragments import IF_CHANGED, JOINED, REPLACE

if TYPE_CHECKING:
    from delayed_queue.db.sql import Row, Step

# How a member leaves its batch.
DONE: Final = "done"
DIED: Final = "dead"
DROPPED: Final = "dropped"
EXPIRED: Final = "expired"


def count_gone(gone: LiteralString) -> LiteralString:
    """Return an UPDATE that adds members, which ``gone`` returns, to the counters of batches.

    The lock on a batch, until the commit, makes two transactions that remove its last members
    follow each other. Batches are locked by id, so two workers cannot deadlock. Returns the
    batches that exist.
    Reads: as ``gone``, then delayed_queue_batch_pkey.
    """
    return f"""
WITH gone AS MATERIALIZED ({gone}
),
numbers AS MATERIALIZED (
    SELECT
        batch,
        COALESCE(sum(number) FILTER (WHERE outcome = 'done'), 0) AS done,
        COALESCE(sum(number) FILTER (WHERE outcome = 'dead'), 0) AS dead,
        COALESCE(sum(number) FILTER (WHERE outcome = 'dropped'), 0) AS dropped,
        COALESCE(sum(number) FILTER (WHERE outcome = 'expired'), 0) AS expired
    FROM gone
    GROUP BY batch
),
locked AS MATERIALIZED (
    SELECT id
    FROM delayed_queue_batch
    WHERE id = ANY (ARRAY(SELECT batch FROM numbers))
    ORDER BY id
    FOR NO KEY UPDATE
)
UPDATE delayed_queue_batch AS stored
SET done = stored.done + numbers.done,
    dead = stored.dead + numbers.dead,
    dropped = stored.dropped + numbers.dropped,
    expired = stored.expired + numbers.expired
FROM numbers
WHERE stored.id = ANY (ARRAY(SELECT id FROM locked))
    AND stored.id = numbers.batch
RETURNING stored.id
"""


# Count members that the next statement of the transaction removes from the queue, and lock them, so
# that it removes the same. An empty lease id stands for none. COALESCE keeps the planner from the
# index of members. Outcomes are arrays, because a join would be a nested loop over all members.
# Reads: the primary key; delayed_queue_batch_pkey.
COUNT_MEMBERS: Final[LiteralString] = count_gone("""
    SELECT held.batch, held.outcome, 1 AS number
    FROM (
        SELECT
            "batchId" AS batch,
            CASE
                WHEN id = ANY (%(dead)b::bigint[]) THEN 'dead'
                WHEN id = ANY (%(dropped)b::bigint[]) THEN 'dropped'
                WHEN id = ANY (%(expired)b::bigint[]) THEN 'expired'
                ELSE 'done'
            END AS outcome
        FROM delayed_queue
        WHERE id = ANY (%(ids)b::bigint[])
            AND COALESCE("lockUuid", '') = ANY (%(lease_ids)s::text[])
            AND COALESCE("batchId" > 0, false)
        ORDER BY id
        FOR UPDATE
    ) AS held""")

# Count the member under a key as dropped, and lock it.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex, delayed_queue_batch_pkey.
COUNT_KEY: Final[LiteralString] = count_gone("""
    SELECT held.batch, 'dropped' AS outcome, 1 AS number
    FROM (
        SELECT "batchId" AS batch
        FROM delayed_queue
        WHERE "pKey" = %(key)s
            AND "pKind" = %(kind)s
            AND COALESCE("batchId" > 0, false)
        FOR UPDATE
    ) AS held""")

# As COUNT_KEY for all members of the kind. Reads: message_of_batch, delayed_queue_batch_pkey.
COUNT_KIND: Final[LiteralString] = count_gone("""
    SELECT held.batch, 'dropped' AS outcome, 1 AS number
    FROM delayed_queue_batch AS batch
    CROSS JOIN LATERAL (
        SELECT "batchId" AS batch
        FROM delayed_queue
        WHERE "batchId" = batch.id
            AND "pKind" || '' = %(kind)s
        ORDER BY id
        FOR UPDATE
    ) AS held""")

# Count members that this transaction has removed. Reads: delayed_queue_batch_pkey.
COUNT_REMOVED: Final[LiteralString] = count_gone("""
    SELECT batch, outcome, number
    FROM unnest(%(batches)b::bigint[], %(outcomes)s::text[], %(numbers)b::bigint[])
        AS removed (batch, outcome, number)""")


def _none_in(table: LiteralString) -> LiteralString:
    # The search begins with the newest, behind fewer dead index entries.
    return f"""(
                SELECT id
                FROM {table}
                WHERE "batchId" = batch.id
                ORDER BY "batchId" DESC, id DESC
                LIMIT 1
            ) IS NULL"""


# Offer "then" of batches that have finished. If several have the same, the last one offers it.
_OFFER_THEN: Final[LiteralString] = f"""offered AS (
    INSERT INTO delayed_queue AS stored (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "expiresAt"
    )
    SELECT DISTINCT ON ("thenKey" COLLATE "C", "thenKind")
        "thenKey", "thenKind", "thenPayload", COALESCE("thenScheduledAt", now),
        COALESCE("thenScheduledAt", now), now,
        COALESCE("thenHeaders", '{{}}') || jsonb_build_object('batch', jsonb_build_object(
            'id', id, 'total', done + dead + dropped + expired, 'done', done, 'dead', dead,
            'dropped', dropped, 'expired', expired
        )),
        now, "thenGroup", "thenExpiresAt"
    FROM finished
    CROSS JOIN clock
    ORDER BY "thenKey" COLLATE "C", "thenKind", id DESC
{REPLACE}{IF_CHANGED}
    RETURNING "pKind"
)
SELECT CASE
    WHEN pg_notification_queue_usage() < 0.5
    THEN pg_notify('delayed_queue_' || md5("pKind"), '')::text
END
FROM offered
"""


def _finish(batches: LiteralString) -> LiteralString:
    """Return a statement that deletes closed batches without members and offers their ``then``.

    It is a statement of its own, so that its snapshot has all that was committed before the lock on
    the batch was taken. A member cannot be added unseen: a producer locks an open batch until its
    commit, and close() waits for that; a member that adds others is itself visible until then. A
    batch that a producer or another finish has locked is skipped.
    Reads: delayed_queue_batch_pkey, message_of_batch, dead_letter_of_batch, then
    delayed_queue__PKeyPlusKindUniqueIndex.
    """
    return f"""{CLOCK},
finished AS (
    DELETE FROM delayed_queue_batch
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_batch AS batch
        WHERE {batches}
            AND "closedAt" IS NOT NULL
            AND {_none_in("delayed_queue")}
            AND {_none_in("delayed_queue_dead_letter")}
        ORDER BY id
        FOR UPDATE SKIP LOCKED
    ))
    RETURNING
        id, "thenKind", "thenKey", "thenPayload", "thenHeaders", "thenGroup", "thenScheduledAt",
        "thenExpiresAt", done, dead, dropped, expired
),
{_OFFER_THEN}"""


# Lock a batch that can be joined; no row if it cannot.
# Reads: delayed_queue_batch_pkey, the primary key.
HOLD_BATCH: Final[LiteralString] = f"""
WITH {JOINED}
SELECT batch
FROM joined
"""

FINISH_BATCHES: Final[LiteralString] = _finish("id = ANY (%(batches)b::bigint[])")

# Finish any batch, after statements that do not name theirs. Reads: the few batches.
SWEEP_BATCHES: Final[LiteralString] = _finish("id > 0")


class Joining(NamedTuple):
    """The right to add members: to an open batch, or as one of its members.

    ``is_inside`` is true in the transaction that has taken the member out of the queue.
    """

    batch_id: int
    message_id: int | None = None
    lease_id: str | None = None
    is_inside: bool = False


class _Member(Protocol):
    @property
    def batch_id(self) -> int | None: ...


def batches_of(messages: Iterable[_Member]) -> set[int]:
    """Return the batches that messages are members of."""
    return {each.batch_id for each in messages if each.batch_id is not None}


class _Cancellable(Protocol):
    was_cancelled: bool


def outcome_of(message: _Cancellable, *, has_expired: bool) -> str:
    """Return how a member leaves its batch that is deleted without an error."""
    if has_expired:
        return EXPIRED
    return DROPPED if message.was_cancelled else DONE


class Leaving(NamedTuple):
    """A member that leaves its batch, and how."""

    message_id: int
    lease_id: str | None
    outcome: str


def count_step(members: Collection[Leaving]) -> Step:
    """Count members that the next step of the transaction settles, and lock them."""
    by_outcome: dict[str, list[int]] = {DIED: [], DROPPED: [], EXPIRED: [], DONE: []}
    for each in members:
        by_outcome[each.outcome].append(each.message_id)
    del by_outcome[DONE]
    params = {
        "ids": [each.message_id for each in members],
        "lease_ids": sorted({each.lease_id or "" for each in members}),
        **by_outcome,
    }
    return COUNT_MEMBERS, params


def removed_step(numbers: Mapping[tuple[int, str], int]) -> Step:
    """Count members that the transaction has removed, by batch and outcome."""
    batches, outcomes = map(list, zip(*numbers, strict=True))
    params = {"batches": batches, "outcomes": outcomes, "numbers": list(numbers.values())}
    return COUNT_REMOVED, params


def finish_step(batches: Iterable[int] | None, now: int | None = None) -> Step:
    """Finish those batches that are closed and have no members; None stands for all."""
    if batches is None:
        return SWEEP_BATCHES, {"now": now}
    return FINISH_BATCHES, {"now": now, "batches": sorted(batches)}


def settle_members(
    using: str,
    step: Step,
    lease_id: str | None,
    ids: Sequence[int],
    outcome: str,
    batches: Collection[int],
    now: int | None = None,
) -> list[Row]:
    """Run a settlement of messages that may be members of batches; return its rows."""
    if not batches:
        return db.fetch(using, *step)
    members = [Leaving(each, lease_id, outcome) for each in ids]
    _, rows, _ = db.run(using, [count_step(members), step, finish_step(batches, now)])
    return rows
