"""The statements of bulk runs: operations on many dead letters, and their progress."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, column_of, first_row, row_of, rows_of, value_of
from delayed_queue.db.statements import execute, fetch

RUNNING: Final = "running"
PAUSED: Final = "paused"
DONE: Final = "done"
CANCELLED: Final = "cancelled"
STOPPED: Final = "stopped"

# The index of a run's letters: its columns, and the parameters of the first ones. For a group the
# fingerprint comes first, so that the planner uses no other index, even on a table that seems
# empty.
_QUEUE: Final = ('"pKind", "diedAt", id', "%(kind)s::text")
_GROUP: Final = ('fingerprint, "pKind", "diedAt", id', "%(fingerprint)s::text, %(kind)s::text")

# Start a run unless one over the same group or its queue is in progress. The unique index decides
# between two that start at the same moment over one group. A run over a queue and one over a group
# of it may both start; each letter goes to the one that locks it first.
# Reads: bulk_run_in_progress.
START_RUN: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_bulk_run (
    action, "pKind", fingerprint, "group", reason, "keyFrom", "keyBefore", pace, most, canary,
    "canaryDeaths", "lastDiedAt", "diedUntil", "newestId", total, "isTotalCut", failure,
    "startedBy", why, "createdAt", "nextAt"
)
SELECT
    %(action)s::text, %(kind)s::text, %(fingerprint)s::text, %(group)s::text, %(reason)s::text,
    %(key_from)s::text, %(key_before)s::text, %(pace)s::float8, %(most)s::bigint,
    %(canary)s::integer, %(deaths)s::integer, %(since)s::bigint, LEAST(%(until)s::bigint, now),
    %(newest)s::bigint, %(total)s::bigint, %(is_cut)s::boolean, %(failure)s::text, %(by)s::text,
    %(why)s::text, now, now
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

# Lock the next run until the transaction ends; skip those of other workers. A batch commits with
# its position, so a kill loses and repeats nothing.
# Reads: bulk_run_next.
LOCK_RUN: Final[LiteralString] = f"""{CLOCK}
SELECT
    id, action, "pKind", fingerprint, "group", reason, "keyFrom", "keyBefore", pace, most, canary,
    "canaryDeaths", "isCanaryOver", "canaryKeys"::text, "diedUntil", "newestId", "lastDiedAt",
    "lastId", done
FROM delayed_queue_bulk_run
WHERE state = 'running'
    AND "nextAt" <= (SELECT now FROM clock)
ORDER BY "nextAt", id
LIMIT 1
FOR UPDATE SKIP LOCKED
"""

# Milliseconds until the next batch of a run; NULL when none is running. Reads: bulk_run_next.
NEXT_RUN: Final[LiteralString] = f"""{CLOCK}
SELECT (
    SELECT "nextAt" - (SELECT now FROM clock)
    FROM delayed_queue_bulk_run
    WHERE state = 'running'
    ORDER BY "nextAt", id
    LIMIT 1
)
"""

# Save the position. The next batch is due relative to this one's due time, so that the pace holds;
# at most a second is caught up. Reads: the primary key.
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

# Pause, resume or cancel a run in one of the states, after a batch that is under way.
# Reads: the primary key.
SWITCH_RUN: Final[LiteralString] = f"""{CLOCK}
UPDATE delayed_queue_bulk_run
SET state = %(state)s::text,
    "nextAt" = (SELECT now FROM clock),
    "endedAt" = CASE WHEN %(state)s::text = 'cancelled' THEN (SELECT now FROM clock) END
WHERE id = %(id)s::bigint
    AND state = ANY (%(states)b::text[])
RETURNING id
"""


# The filter of a run; NULL stands for any.
_MEANT: Final[LiteralString] = """COALESCE(starts_with(reason, %(reason)s::text), true)
            AND COALESCE("pKey" >= %(key_from)s::text, true)
            AND COALESCE("pKey" < %(key_before)s::text, true)
            AND COALESCE("group" = %(group)s::text, %(group)s::text IS NULL)"""


def _preview(columns: LiteralString, first: LiteralString) -> LiteralString:
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
        WHERE {_between(columns, first, "%(since)s::bigint, 0")}
        ORDER BY {columns}
        LIMIT (SELECT %(cap)s::integer)
    ) AS all_there
    LIMIT %(cap)s::integer
) AS counted
"""


def _between(columns: LiteralString, first: LiteralString, after: LiteralString) -> LiteralString:
    return f"""({columns}) > ({first}, {after})
            AND ({columns}) <= ({first}, %(until)s::bigint, 9223372036854775807)"""


def _next(columns: LiteralString, first: LiteralString) -> LiteralString:
    """Return the statement of a page of letters in the order of their deaths.

    Letters that do not match are included, marked NULL, so that a page is bounded.
    The others are marked if they are the newest of their key. Later letters have a higher id than
    the newest one of the preview.
    """
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
            AND COALESCE(newer."group" = %(group)s::text, %(group)s::text IS NULL)
    ) END
FROM (
    SELECT id, "pKey", "diedAt", fingerprint, is_meant
    FROM (
        SELECT
            id, "pKey", "diedAt", fingerprint,
            id <= %(newest)s::bigint
            AND {_MEANT} AS is_meant
        FROM delayed_queue_dead_letter
        WHERE {_between(columns, first, "%(after_at)s::bigint, %(after)s::bigint")}
        ORDER BY {columns}
        LIMIT (SELECT %(limit)s::integer)
    ) AS next
    LIMIT %(limit)s::integer
) AS page
ORDER BY "diedAt", id
"""


# Capped numbers of the letters read and of those that match, and the newest id of all letters.
# Reads: dead_letter_kind_died or dead_letter_group; the end of the primary key.
PREVIEW_QUEUE: Final[LiteralString] = _preview(*_QUEUE)
PREVIEW_GROUP: Final[LiteralString] = _preview(*_GROUP)
# Reads: dead_letter_kind_died or dead_letter_group; dead_letter_key.
NEXT_OF_QUEUE: Final[LiteralString] = _next(*_QUEUE)
NEXT_OF_GROUP: Final[LiteralString] = _next(*_GROUP)

# The messages of the canary: how many are still in the queue, how many died again of the same
# cause.
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
    """The next run, which is locked."""

    id: int
    action: str
    kind: str
    fingerprint: str | None
    group: str | None
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
    """A letter: None if it does not match, else whether it is the newest of its key."""

    id: int
    key: str
    died_at: int
    fingerprint: str
    is_newest: bool | None


class PreviewRow(NamedTuple):
    """The numbers of letters read and of those that match, and the newest id."""

    seen: int
    meant: int
    newest: int


class CanaryRow(NamedTuple):
    """The numbers of a canary's messages that are still in the queue, and dead again."""

    left: int
    dead: int


class BulkRunManager(models.Manager[M]):
    """The statements of bulk runs."""

    def preview(
        self, *, fingerprint: str | None, using: str = DEFAULT_DB_ALIAS, **params: Any
    ) -> PreviewRow:
        """Count what a run would take among the first ``cap`` letters."""
        statement = PREVIEW_QUEUE if fingerprint is None else PREVIEW_GROUP
        return row_of(PreviewRow, fetch(using, statement, {**params, "fingerprint": fingerprint}))

    def start(self, using: str = DEFAULT_DB_ALIAS, **params: Any) -> int | None:
        """Start a run; None while one over the same letters is in progress."""
        found: int | None = value_of(fetch(using, START_RUN, {**params, "now": None}))
        return found

    def lock_next(self, *, using: str = DEFAULT_DB_ALIAS) -> RunRow | None:
        """Lock the next run until the transaction ends."""
        return first_row(RunRow, fetch(using, LOCK_RUN, {"now": None}))

    def next_in(self, *, using: str = DEFAULT_DB_ALIAS) -> int | None:
        """Return the milliseconds until the next batch; None when no run is running."""
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
        """Save the position of the run."""
        params = {**to, "id": run_id, "canary_keys": json.dumps(canary_keys), "now": None}
        execute(using, ADVANCE_RUN, params)

    def canary(
        self, kind: str, keys: dict[str, str], newest: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> CanaryRow:
        """Count what became of the canary since that letter, given as fingerprints by key."""
        params = {
            "kind": kind, "keys": list(keys), "fingerprints": list(keys.values()), "newest": newest
        }  # fmt: skip
        return row_of(CanaryRow, fetch(using, CANARY, params))

    def switch(
        self, run_id: int, state: str, states: Sequence[str], *, using: str = DEFAULT_DB_ALIAS
    ) -> bool:
        """Change the state of the run; False when it is in none of ``states``."""
        params = {"id": run_id, "state": state, "states": list(states), "now": None}
        return bool(column_of(fetch(using, SWITCH_RUN, params)))
