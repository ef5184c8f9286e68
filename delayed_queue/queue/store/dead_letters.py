"""The dead letters: redriving, listing, pruning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, Step, column_of, rows_of, value_of
from delayed_queue.db.statements import fetch, run
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.store.bulk import NEXT_OF_QUEUE, MeantRow
from delayed_queue.queue.store.finishing import finish_step
from delayed_queue.queue.store.fragments import REPLACE, offer_again
from delayed_queue.queue.store.inspect import distinct_values

# The kinds of a family share their keys (hooks.KindFamily); any other kind is its own family.
_FAMILY: Final[LiteralString] = (
    """COALESCE(substring("pKind" FROM %(family)s::text) || '|', "pKind")"""
)
# Now, except for kinds whose messages are identified by their first schedule.
_FIRST_SCHEDULE: Final[LiteralString] = (
    """CASE WHEN keeps_schedule THEN "scheduledAtInitially" ELSE now END"""
)

# Offer dead letters as first attempts, due now. The newest letter of a key is offered; older ones
# stay, and so do letters whose key is in another kind of the family, or in use without
# %(overwrite)s. Returns each letter found: created, updated (false), or still dead (NULL). Locks of
# guards come first, because a message that another transaction moves is not visible.
# A NULL kind stands for any; COALESCE keeps the planner from its index, because a few ids are
# wanted. The letters are deleted by a list of ids, so that no plan scans the table for each. Their
# batches, which wait for them, no longer count them as dead.
# Reads: the primary key of the dead letters; delayed_queue__PKeyPlusKindUniqueIndex.
REDRIVE: Final[LiteralString] = f"""{CLOCK},
locked AS MATERIALIZED (
    SELECT id, "pKind", "pKey", payload, headers, "scheduledAtInitially", "group", "batchId"
    FROM delayed_queue_dead_letter
    WHERE id = ANY (%(ids)b::bigint[])
        AND COALESCE("pKind" = %(kind)s::text, true)
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
families AS MATERIALIZED (
    SELECT "pKind", {_FAMILY} AS family, "pKind" ~ %(keeping)s::text AS keeps_schedule
    FROM (SELECT DISTINCT "pKind" FROM locked) AS kinds
),
newest AS MATERIALIZED (
    SELECT DISTINCT ON ("pKey", family)
        id, "pKind", "pKey", payload, headers, "scheduledAtInitially", "group", "batchId",
        family, keeps_schedule
    FROM locked
    JOIN families USING ("pKind")
    ORDER BY "pKey", family, id DESC
),{offer_again(_FIRST_SCHEDULE)}
    WHERE family = "pKind"
        OR COALESCE(
            (
                SELECT false
                FROM delayed_queue AS active
                WHERE active."pKey" = newest."pKey"
                    AND active."pKind" <> newest."pKind"
                    AND {_FAMILY} = newest.family
                LIMIT 1
            ),
            true
        )
    ORDER BY "pKey" COLLATE "C", "pKind"
{REPLACE},
    "batchId" = COALESCE(stored."batchId", EXCLUDED."batchId")
    WHERE %(overwrite)s::boolean
    RETURNING "pKey", "pKind", xmax = 0 AS created
),
redriven AS MATERIALIZED (
    SELECT id, created, "batchId"
    FROM newest
    JOIN offered USING ("pKey", "pKind")
),
counted AS (
    UPDATE delayed_queue_batch AS batch
    SET dead = dead - number
    FROM (
        SELECT "batchId", count(*) AS number
        FROM redriven
        WHERE "batchId" IS NOT NULL
        GROUP BY "batchId"
    ) AS back
    WHERE batch.id = back."batchId"
),
gone AS (
    DELETE FROM delayed_queue_dead_letter
    WHERE id = ANY (ARRAY(SELECT id FROM redriven))
)
SELECT locked.id, redriven.created, locked."pKind"
FROM locked
LEFT JOIN redriven ON redriven.id = locked.id
"""

# Delete a bounded batch of dead letters that are older than the age, except those that a redrive
# holds or that block their group, which only an operator may resume. Two limits as in select_due.
# Reads: dead_letter_kind_died, limit_kind_group.
PRUNE_DEAD_LETTERS: Final[LiteralString] = f"""{CLOCK},
rule AS MATERIALIZED (
    SELECT "blocksOnDead" AS blocks
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
        AND "group" = ''
)
DELETE FROM delayed_queue_dead_letter
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_dead_letter AS letter
        WHERE "pKind" = %(kind)s
            AND "diedAt" < (SELECT now FROM clock) - %(age)s::bigint
            AND CASE
                WHEN "group" IS NULL OR NOT COALESCE((SELECT blocks FROM rule), false) THEN true
                ELSE EXISTS (
                    SELECT
                    FROM delayed_queue_limit AS own
                    WHERE own."pKind" = %(kind)s
                        AND own."group" = letter."group"
                        AND own."resumedAt" >= letter."diedAt"
                )
            END
        ORDER BY "diedAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
RETURNING id
"""

# Delete dead letters by id, from the admin. Reads: the primary key.
DROP_DEAD_LETTERS: Final[LiteralString] = """
DELETE FROM delayed_queue_dead_letter
WHERE id = ANY (%(ids)b::bigint[])
RETURNING id
"""

# Reads: dead_letter_kind_died.
DEAD_LETTER_KINDS: Final[LiteralString] = distinct_values(
    "delayed_queue_dead_letter", '"pKind"', '"diedAt"', "id"
)

# Dead letters by queue and fingerprint, the latest first: for each group a capped count, its first
# and its newest letter. A loose scan with three probes of the index per group. NULL kinds: all.
# A group is compared by bounds, the fingerprint first: only this index has that order.
# Reads: dead_letter_group, then the primary key for the newest letters.
DEAD_LETTER_GROUPS: Final[LiteralString] = """
WITH RECURSIVE groups (fingerprint, kind, first_at, position) AS (
    (
        SELECT fingerprint, "pKind", "diedAt", 1
        FROM delayed_queue_dead_letter
        ORDER BY fingerprint, "pKind", "diedAt", id
        LIMIT 1
    )
    UNION ALL
    SELECT next.fingerprint, next."pKind", next."diedAt", position + 1
    FROM groups
    CROSS JOIN LATERAL (
        SELECT letter.fingerprint, "pKind", "diedAt"
        FROM delayed_queue_dead_letter AS letter
        WHERE (letter.fingerprint, "pKind") > (groups.fingerprint, groups.kind)
        ORDER BY letter.fingerprint, "pKind", "diedAt", id
        LIMIT 1
    ) AS next
    WHERE position < %(limit)s::integer
),
meant AS MATERIALIZED (
    SELECT fingerprint, kind, first_at
    FROM groups
    WHERE COALESCE(kind = ANY (%(kinds)s::text[]), true)
),
latest AS MATERIALIZED (
    SELECT meant.kind, meant.fingerprint, first_at, last.died_at, last.id
    FROM meant
    CROSS JOIN LATERAL (
        SELECT "diedAt" AS died_at, id
        FROM delayed_queue_dead_letter AS letter
        WHERE (letter.fingerprint, "pKind") <= (meant.fingerprint, meant.kind)
        ORDER BY letter.fingerprint DESC, "pKind" DESC, "diedAt" DESC, id DESC
        LIMIT 1
    ) AS last
    ORDER BY last.died_at DESC, last.id DESC
    LIMIT %(shown)s::integer
)
SELECT
    latest.kind, latest.fingerprint,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM (
                SELECT 1
                FROM delayed_queue_dead_letter AS letter
                WHERE (letter.fingerprint, "pKind") >= (latest.fingerprint, latest.kind)
                    AND (letter.fingerprint, "pKind") <= (latest.fingerprint, latest.kind)
                ORDER BY letter.fingerprint, "pKind", "diedAt", id
                LIMIT (SELECT %(cap)s::integer)
            ) AS all_there
            LIMIT %(cap)s::integer
        ) AS counted
    ),
    first_at, died_at, latest.id, sample."pKey", sample.reason, sample."lastError",
    (SELECT count(*) FROM meant)
FROM latest
JOIN delayed_queue_dead_letter AS sample ON sample.id = latest.id
ORDER BY died_at DESC, latest.id DESC
"""

# The number of those dead letters that exist. Reads: the primary key of the dead letters.
COUNT_LETTERS: Final[LiteralString] = """
SELECT count(*)
FROM delayed_queue_dead_letter
WHERE id = ANY (%(ids)b::bigint[])
    AND COALESCE("pKind" = %(kind)s::text, true)
"""

M = TypeVar("M", bound=models.Model)
_BATCH: Final = 1000
_MAX: Final = 2**63 - 1
MAX_GROUPS: Final = 5_000
GROUP_CAP: Final = 10_001


class RedrivenRow(NamedTuple):
    """A dead letter: created or updated in its queue, or (None) still dead."""

    id: int
    created: bool | None
    kind: str


class GroupRow(NamedTuple):
    """Dead letters of a queue with one fingerprint, by the newest of them."""

    kind: str
    fingerprint: str
    letters: int
    first_at: int
    last_at: int
    newest: int
    key: str
    reason: str
    error: str | None
    groups: int


def family_params() -> dict[str, Any]:
    """Return the parameters of REDRIVE about kinds that share their keys."""
    family = hooks.kind_family
    return {
        "family": family and family.pattern, "keeping": family and family.keeps_schedule
    }  # fmt: skip


def _guarding(ids: Sequence[int], kind: str | None) -> list[Step]:
    return [step for guard in hooks.redrive_guards for step in guard.locks(ids, kind)]


def _remove(using: str, step: Step) -> int:
    """Delete letters, which batches may wait for; return their number."""
    removed, _ = run(using, [step, finish_step(None)])
    return len(removed)


class DeadLetterManager(models.Manager[M]):
    """The statements of dead letters."""

    def redrive(
        self,
        ids: Sequence[int],
        *,
        overwrite: bool = False,
        kind: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[RedrivenRow]:
        """Offer those letters again, behind the locks of guards, in one round trip.

        Letters that are not returned do not exist or are locked.
        """
        params = {"ids": list(ids), "overwrite": overwrite, "kind": kind, "now": now}
        params |= family_params()
        steps = [*_guarding(ids, kind), (REDRIVE, params)]
        *_, redriven = run(using, steps)
        return rows_of(RedrivenRow, redriven)

    def count_of(
        self, ids: Sequence[int], *, kind: str | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Return the number of those letters that exist, in the kind if one is given."""
        found: int = value_of(fetch(using, COUNT_LETTERS, {"ids": list(ids), "kind": kind}))
        return found

    def batch_size(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Return the maximum of letters to redrive at a time, as guards allow."""
        limits = [guard.most_at_once(kind, using) for guard in hooks.redrive_guards]
        return min([_BATCH, *(each for each in limits if each is not None)])

    def hold_jobs(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Take the locks of guards, before the letters are locked as in ``redrive``."""
        if steps := _guarding(ids, None):
            run(using, steps)

    def next_letters(
        self,
        kind: str,
        *,
        after: tuple[int, int],
        reason: str | None = None,
        limit: int = 1000,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[MeantRow]:
        """Return the next letters by time of death and id, marked if the reason matches."""
        params = {
            "kind": kind, "after_at": after[0], "after": after[1], "reason": reason,
            "limit": limit, "fingerprint": None, "key_from": None, "key_before": None,
            "group": None, "newest": _MAX, "until": _MAX,
        }  # fmt: skip
        return rows_of(MeantRow, fetch(using, NEXT_OF_QUEUE, params))

    def kinds(self, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[str]:
        """Return the kinds that have dead letters, at most ``limit``, in the index's order."""
        return column_of(fetch(using, DEAD_LETTER_KINDS, {"limit": limit}))

    def groups(
        self,
        kinds: Sequence[str] | None = None,
        *,
        shown: int = 25,
        cap: int = GROUP_CAP,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[GroupRow]:
        """Return the ``shown`` latest groups, each counted up to ``cap``."""
        chosen = None if kinds is None else list(kinds)
        params = {"kinds": chosen, "shown": shown, "limit": MAX_GROUPS, "cap": cap}
        return rows_of(GroupRow, fetch(using, DEAD_LETTER_GROUPS, params))

    def prune(
        self,
        kind: str,
        age: int,
        *,
        limit: int = 1000,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> int:
        """Delete up to ``limit`` letters older than ``age``, unless they block their group."""
        params = {"kind": kind, "age": age, "limit": limit, "now": now}
        return _remove(using, (PRUNE_DEAD_LETTERS, params))

    def drop(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        return _remove(using, (DROP_DEAD_LETTERS, {"ids": list(ids)}))
