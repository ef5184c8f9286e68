"""Dead jobs: listed, read, and put back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.sql import CLOCK, column_of, first_row, rows_of
from delayed_queue.db.statements import (
    Step,
    fetch,
    fetch_all,
)
from delayed_queue.http.jobs.kinds import PLACES
from delayed_queue.http.store.topics import locking_jobs
from delayed_queue.queue.store.fragments import (
    offering_again,
)

# The dead letters of one job. Reads: topic_name, dead_letter_key.
JOB_LETTERS: Final[LiteralString] = (
    "\nWITH"
    + PLACES
    + """
SELECT id
FROM delayed_queue_dead_letter
WHERE "pKey" = %(key)s
    AND COALESCE("pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
"""
)

# The dead letters of several kinds in id order, behind the last seen one.
# Reads: dead_letter_kind_id, at most the limit of each kind.
DEAD_JOBS: Final[LiteralString] = """
SELECT
    letter.id, letter."pKind", letter."pKey", letter.payload, letter.headers::text,
    letter.attempts, letter.reason, letter."lastError", letter."createdAt", letter."diedAt"
FROM unnest(%(kinds)b::text[]) AS queue (kind)
CROSS JOIN LATERAL (
    SELECT
        id, "pKind", "pKey", payload, headers, attempts, reason, "lastError", "createdAt", "diedAt"
    FROM (
        SELECT
            id, "pKind", "pKey", payload, headers, attempts, reason, "lastError", "createdAt",
            "diedAt"
        FROM delayed_queue_dead_letter
        WHERE "pKind" || '' = queue.kind
            AND id > %(after)s::bigint
        ORDER BY id
        LIMIT (SELECT %(limit)s::integer)
    ) AS next
    LIMIT %(limit)s::integer
) AS letter
ORDER BY letter.id
LIMIT %(limit)s::integer
"""

# Reads: the primary key of the dead letters.
READ_DEAD_JOB: Final[LiteralString] = """
SELECT
    id, "pKind", "pKey", payload, headers::text, attempts, reason, "lastError", "createdAt",
    "diedAt"
FROM delayed_queue_dead_letter
WHERE id = %(id)s::bigint
"""

# REDRIVE for jobs: a letter whose job is there again in any kind of the topic stays dead. A row for
# each letter that went back. To run under LOCK_JOBS. With %(newest_only)s a letter is passed over
# where the job has a newer one, among the ids or not: it is in a later batch.
# Reads: the primary key of the dead letters, dead_letter_key;
# delayed_queue__PKeyPlusKindUniqueIndex.
KICK_JOBS: Final[LiteralString] = (
    CLOCK
    + ","
    + PLACES
    + """,
locked AS MATERIALIZED (
    SELECT id, "pKind", "pKey", payload, headers, "scheduledAtInitially", "group"
    FROM delayed_queue_dead_letter AS letter
    WHERE id = ANY (%(ids)b::bigint[])
        AND "pKind" = ANY ((SELECT kinds FROM places)::text[])
        AND NOT (
            %(newest_only)s::boolean
            AND EXISTS (
                SELECT 1
                FROM delayed_queue_dead_letter AS newer
                WHERE newer."pKey" = letter."pKey"
                    AND COALESCE(newer.id > letter.id, false)
                    AND COALESCE(newer."pKind" = ANY ((SELECT kinds FROM places)::text[]), false)
            )
        )
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
newest AS MATERIALIZED (
    SELECT DISTINCT ON ("pKey")
        id, "pKind", "pKey", payload, headers, "scheduledAtInitially", "group"
    FROM locked
    ORDER BY "pKey", id DESC
),"""
    + offering_again(
        """CASE WHEN right("pKind", 9) = '|callback' THEN "scheduledAtInitially" ELSE now END"""
    )
    + """
    WHERE COALESCE(
            (
                SELECT false
                FROM delayed_queue AS active
                WHERE active."pKey" = newest."pKey"
                    AND active."pKind" = ANY ((SELECT kinds FROM places)::text[])
                LIMIT 1
            ),
            true
        )
    ORDER BY "pKey" COLLATE "C"
    ON CONFLICT ("pKey", "pKind") DO NOTHING
    RETURNING "pKey", "pKind"
)
DELETE FROM delayed_queue_dead_letter AS letter
USING newest, offered
WHERE letter.id = newest.id
    AND newest."pKey" = offered."pKey"
    AND newest."pKind" = offered."pKind"
RETURNING letter.id, letter."pKind"
"""
)


class DeadJobRow(NamedTuple):
    """A dead letter of a topic."""

    id: int
    kind: str
    key: str
    payload: bytes
    headers: str | None
    attempts: int
    reason: str
    last_error: str | None
    created_at: int
    died_at: int


class DeadStore:
    """The statements about dead jobs."""

    def letters_of(self, topic: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> list[int]:
        """Return the ids of the job's dead letters."""
        rows = fetch(using, JOB_LETTERS, {"topic": topic, "key": key})
        return column_of(rows)

    def dead(
        self, kinds: Sequence[str], after: int, limit: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> list[DeadJobRow]:
        """Return the next dead letters of the kinds, in id order."""
        params = {"kinds": list(kinds), "after": after, "limit": limit}
        return rows_of(DeadJobRow, fetch(using, DEAD_JOBS, params))

    def read_dead(self, letter_id: int, *, using: str = DEFAULT_DB_ALIAS) -> DeadJobRow | None:
        rows = fetch(using, READ_DEAD_JOB, {"id": letter_id})
        return first_row(DeadJobRow, rows)

    def kick(
        self,
        topic: str,
        ids: Sequence[int],
        keys: Sequence[str],
        *,
        newest_only: bool = False,
        using: str = DEFAULT_DB_ALIAS,
    ) -> dict[int, str]:
        """Put dead jobs of those keys back under their locks, due now; return each one's kind.

        ``newest_only``: no letter whose job has a newer one, be that among the ids or not.
        """
        params = {"topic": topic, "ids": list(ids), "newest_only": newest_only, "now": None}
        steps: list[Step] = [locking_jobs(topic, keys), (KICK_JOBS, params)]
        _, kicked = fetch_all(using, steps)
        return dict(kicked)
