"""The rows of bulk runs: what is done to many dead letters, and how far it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, column_of, row_of, rows_of, value_of
from delayed_queue.db.statements import execute, fetch

RUNNING: Final = "running"
PAUSED: Final = "paused"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
STOPPED: Final = "stopped"

# Where a run's letters are in their index: of a group by the fingerprint before the kind, which no
# other index knows, so that the planner goes by it also where it takes the table for empty.
_OF_QUEUE: Final[LiteralString] = """"pKind", "diedAt", id"""
_QUEUE: Final[LiteralString] = """%(kind)s::text"""
_OF_GROUP: Final[LiteralString] = """fingerprint, "pKind", "diedAt", id"""
_GROUP: Final[LiteralString] = """%(fingerprint)s::text, %(kind)s::text"""

# Begin a run, unless one over the same letters is in progress: over the group, or over its queue.
# Two that begin at the same moment over one group meet in the unique index; those over a queue and
# a group of it may both begin, and each letter is then had by whichever locks it first.
# Reads: bulk_run_in_progress.
START_RUN: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_bulk_run (
    action, "pKind", fingerprint, reason, "keyFrom", "keyBefore", pace, most, canary,
    "canaryDeaths", "lastDiedAt", "diedUntil", "newestId", total, "isTotalCut", "startedBy", why,
    "createdAt", "nextAt"
)
SELECT
    %(action)s::text, %(kind)s::text, %(fingerprint)s::text, %(reason)s::text, %(key_from)s::text,
    %(key_before)s::text, %(pace)s::float8, %(most)s::bigint, %(canary)s::integer,
    %(deaths)s::integer, %(since)s::bigint, LEAST(%(until)s::bigint, now), %(newest)s::bigint,
    %(total)s::bigint, %(is_cut)s::boolean, %(by)s::text, %(why)s::text, now, now
FROM clock
WHERE NOT EXISTS (
    SELECT 1
    FROM delayed_queue_bulk_run AS other
    WHERE other."pKind" = %(kind)s::text
        AND other.state IN ('running', 'paused')
        AND COALESCE(other.fingerprint = %(fingerprint)s::text, true)
)
ON CONFLICT DO NOTHING
RETURNING id
"""

# Lock the run whose turn it is, to the end of the transaction; one that another worker has is
# passed over. What it does commits with how far it is, so a kill loses nothing and repeats nothing.
# Reads: bulk_run_next.
LOCK_RUN: Final[LiteralString] = f"""{CLOCK}
SELECT
    id, action, "pKind", fingerprint, reason, "keyFrom", "keyBefore", pace, most, canary,
    "canaryDeaths", "isCanaryOver", "canaryKeys"::text, "diedUntil", "newestId", "lastDiedAt",
    "lastId", done
FROM delayed_queue_bulk_run
WHERE state = 'running'
    AND "nextAt" <= (SELECT now FROM clock)
ORDER BY "nextAt", id
LIMIT 1
FOR UPDATE SKIP LOCKED
"""

# Milliseconds until a run has its turn; NULL when none is running. Reads: bulk_run_next.
NEXT_RUN: Final[LiteralString] = f"""{CLOCK}
SELECT (
    SELECT "nextAt" - (SELECT now FROM clock)
    FROM delayed_queue_bulk_run
    WHERE state = 'running'
    ORDER BY "nextAt", id
    LIMIT 1
)
"""

# The next turn is counted from when this one was due, so that a pace is kept though turns take
# time; a second is caught up at most. Reads: the primary key.
ADVANCE_RUN: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue_bulk_run
SET "lastDiedAt" = %(last_died_at)s::bigint,
    "lastId" = %(last_id)s::bigint,
    done = done + %(done)s::bigint,
    skipped = skipped + %(skipped)s::bigint,
    "canaryKeys" = %(canary_keys)s::jsonb,
    "isCanaryOver" = %(is_canary_over)s::boolean,
    state = %(state)s::text,
    note = %(note)s::text,
    "nextAt" = GREATEST("nextAt", (SELECT now FROM clock) - 1000) + %(wait)s::bigint,
    "endedAt" = CASE WHEN %(state)s::text <> 'running' THEN (SELECT now FROM clock) END
WHERE id = %(id)s::bigint
"""

# Pause, resume or cancel; waits for the batch that a worker is at. No row: it is not in such a
# state any more. Reads: the primary key.
SWITCH_RUN: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue_bulk_run
SET state = %(state)s::text,
    "nextAt" = (SELECT now FROM clock),
    "endedAt" = CASE WHEN %(state)s::text = 'cancelled' THEN (SELECT now FROM clock) END
WHERE id = %(id)s::bigint
    AND state = ANY (%(states)b::text[])
RETURNING id
"""


# What is meant among the letters of that place; a NULL leaves it open, for these are strict.
_MEANT: Final[LiteralString] = """COALESCE(starts_with(reason, %(reason)s::text), true)
            AND COALESCE("pKey" >= %(key_from)s::text, true)
            AND COALESCE("pKey" < %(key_before)s::text, true)"""


def _preview(columns: LiteralString, place: LiteralString) -> LiteralString:
    return f"""
SELECT
    count(*), count(*) FILTER (WHERE is_meant),
    COALESCE((SELECT max(id) FROM delayed_queue_dead_letter), 0)
FROM (
    SELECT is_meant
    FROM (
        SELECT
            {_MEANT} AS is_meant
        FROM delayed_queue_dead_letter
        WHERE {_between(columns, place, '''%(since)s::bigint, 0''')}
        ORDER BY {columns}
        LIMIT (SELECT %(cap)s::integer)
    ) AS all_there
    LIMIT %(cap)s::integer
) AS counted
"""


def _between(columns: LiteralString, place: LiteralString, after: LiteralString) -> LiteralString:
    return f"""({columns}) > ({place}, {after})
            AND ({columns}) <= ({place}, %(until)s::bigint, 9223372036854775807)"""


# The next letters of a run, in the order of their deaths, also those that it passes over, so that a
# page is bounded whatever the filter. Of each: NULL when it is not meant, else whether it is the
# newest of its key among those that are. What died after the preview has a higher id.
def _next(columns: LiteralString, place: LiteralString) -> LiteralString:
    return f"""
SELECT
    id, "pKey", "diedAt", fingerprint,
    CASE WHEN is_meant
    THEN NOT EXISTS (
        SELECT 1
        FROM delayed_queue_dead_letter AS newer
        WHERE newer."pKey" = page."pKey"
            AND COALESCE(newer."pKind" = %(kind)s::text, false)
            AND COALESCE(newer.id > page.id AND newer.id <= %(newest)s::bigint, false)
            AND COALESCE(starts_with(newer.reason, %(reason)s::text), true)
            AND COALESCE(newer.fingerprint = %(fingerprint)s::text, true)
    ) END
FROM (
    SELECT id, "pKey", "diedAt", fingerprint, is_meant
    FROM (
        SELECT
            id, "pKey", "diedAt", fingerprint,
            id <= %(newest)s::bigint
            AND {_MEANT} AS is_meant
        FROM delayed_queue_dead_letter
        WHERE {_between(columns, place, '''%(after_at)s::bigint, %(after)s::bigint''')}
        ORDER BY {columns}
        LIMIT (SELECT %(limit)s::integer)
    ) AS next
    LIMIT %(limit)s::integer
) AS page
ORDER BY "diedAt", id
"""


# How many letters a run would take, counted so far, and the newest id.
# Reads: dead_letter_kind_died, or dead_letter_group; the primary key's end.
PREVIEW_QUEUE: Final[LiteralString] = _preview(_OF_QUEUE, _QUEUE)
PREVIEW_GROUP: Final[LiteralString] = _preview(_OF_GROUP, _GROUP)
# Reads: dead_letter_kind_died or dead_letter_group; dead_letter_key.
NEXT_OF_QUEUE: Final[LiteralString] = _next(_OF_QUEUE, _QUEUE)
NEXT_OF_GROUP: Final[LiteralString] = _next(_OF_GROUP, _GROUP)

# What became of the canary: how many are still in the queue, how many died again as before.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex, dead_letter_key.
CANARY: Final[LiteralString] = """
SELECT
    (
        SELECT count(*)
        FROM unnest(%(keys)b::text[]) AS wanted (key)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM delayed_queue
            WHERE "pKey" = wanted.key
                AND "pKind" = %(kind)s::text
            LIMIT 1
        ) AS waiting
    ),
    (
        SELECT count(*)
        FROM unnest(%(keys)b::text[], %(fingerprints)b::text[]) AS wanted (key, fingerprint)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM delayed_queue_dead_letter AS letter
            WHERE "pKey" = wanted.key
                AND COALESCE("pKind" = %(kind)s::text, false)
                AND COALESCE(letter.fingerprint = wanted.fingerprint, false)
                AND COALESCE(id > %(newest)s::bigint, false)
            LIMIT 1
        ) AS again
    )
"""

M = TypeVar("M", bound=models.Model)


class RunRow(NamedTuple):
    """A run whose turn it is, under lock."""

    id: int
    action: str
    kind: str
    fingerprint: str | None
    reason: str | None
    key_from: str | None
    key_before: str | None
    pace: float | None
    most: int | None
    canary: int
    canary_deaths: int
    is_canary_over: bool
    canary_keys: str
    until: int
    newest: int
    last_died_at: int
    last_id: int
    done: int


class MeantRow(NamedTuple):
    """A letter: not meant (None), or whether it is the newest of its key."""

    id: int
    key: str
    died_at: int
    fingerprint: str
    is_newest: bool | None


class PreviewRow(NamedTuple):
    """How many letters were looked at, how many of them are meant, and the newest id."""

    seen: int
    meant: int
    newest: int


class CanaryRow(NamedTuple):
    """Of the messages of a canary: still in the queue, dead again."""

    left: int
    dead: int


class BulkRunManager(models.Manager[M]):
    """The statements of bulk runs, in the manner of MessageManager."""

    def preview(
        self, *, fingerprint: str | None, using: str = DEFAULT_DB_ALIAS, **params: Any
    ) -> PreviewRow:
        """Count what a run would take, so far as to have looked at ``cap`` letters."""
        statement = PREVIEW_QUEUE if fingerprint is None else PREVIEW_GROUP
        return row_of(PreviewRow, fetch(using, statement, {**params, "fingerprint": fingerprint}))

    def start(self, using: str = DEFAULT_DB_ALIAS, **params: Any) -> int | None:
        """Begin a run; None, and nothing is begun, while one is over the same letters."""
        rows = fetch(using, START_RUN, {**params, "now": None})
        return value_of(rows) if rows else None

    def lock_next(self, *, using: str = DEFAULT_DB_ALIAS) -> RunRow | None:
        """Lock the run whose turn it is, to the end of the transaction."""
        rows = rows_of(RunRow, fetch(using, LOCK_RUN, {"now": None}))
        return rows[0] if rows else None

    def next_in(self, *, using: str = DEFAULT_DB_ALIAS) -> int | None:
        """Return the milliseconds until a run has its turn; None when none is running."""
        found: int | None = value_of(fetch(using, NEXT_RUN, {"now": None}))
        return found

    def letters(
        self, *, fingerprint: str | None, using: str = DEFAULT_DB_ALIAS, **params: Any
    ) -> list[MeantRow]:
        """Return the next letters behind ``after_at`` and ``after``."""
        statement = NEXT_OF_QUEUE if fingerprint is None else NEXT_OF_GROUP
        return rows_of(MeantRow, fetch(using, statement, {**params, "fingerprint": fingerprint}))

    def advance(
        self, run_id: int, *, canary_keys: dict[str, str], using: str = DEFAULT_DB_ALIAS, **to: Any
    ) -> None:
        """Write how far the run is."""
        params = {**to, "id": run_id, "canary_keys": json.dumps(canary_keys), "now": None}
        execute(using, ADVANCE_RUN, params)

    def canary(
        self, kind: str, keys: dict[str, str], newest: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> CanaryRow:
        """Return what became of those messages, of fingerprints by key, since that letter."""
        params = {
            "kind": kind, "keys": list(keys), "fingerprints": list(keys.values()), "newest": newest
        }  # fmt: skip
        return row_of(CanaryRow, fetch(using, CANARY, params))

    def switch(
        self, run_id: int, state: str, states: Sequence[str], *, using: str = DEFAULT_DB_ALIAS
    ) -> bool:
        """Bring the run into a state from one of those; False when it is in none of them."""
        params = {"id": run_id, "state": state, "states": list(states), "now": None}
        return bool(column_of(fetch(using, SWITCH_RUN, params)))
