"""Statements of rates and kept answers."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, Step, first_row, rows_of
from delayed_queue.db.statements import execute, fetch, run

# Take between ``least`` and ``most`` permits, or none; return the number, and if it is zero the
# microseconds until ``least`` permits are due if no other process takes any. All are microseconds:
# in milliseconds the permits of a high rate would have no size.
#
# This is RateRule of delayed_queue/rates.py: ``bookedUntil`` is its ``spent_until``, and ``burst``
# is given as a time. ON CONFLICT locks the row, so each taker reads what the one before has left.
# One that waited for the lock started at an earlier time, and is given less, never more. The cap on
# booked time applies after an earlier rule or a clock that was set back. It reads the clock under
# the lock, so it does not lower the permits of a taker that came first. ``granted`` is a column
# because RETURNING must return it.
# Reads: rate_name.
TAKE_PERMITS: Final[LiteralString] = """
WITH clock AS MATERIALIZED (
    SELECT COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    ) AS now
)
INSERT INTO delayed_queue_rate AS rate (name, granted, "bookedUntil")
SELECT
    %(name)s,
    %(most)s::integer,
    now + ceil(%(most)s::integer * %(interval)s::float8)::bigint
FROM clock
ON CONFLICT (name) DO UPDATE
SET (granted, "bookedUntil") = (
    SELECT number, booked + ceil(number * %(interval)s::float8)::bigint
    FROM clock
    CROSS JOIN LATERAL (
        SELECT least(
            greatest(rate."bookedUntil", now),
            %(burst)s::bigint + COALESCE(
                %(now)s::bigint,
                floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
            )
        ) AS booked
    ) AS bucket
    CROSS JOIN LATERAL (
        SELECT floor((now + %(burst)s::bigint - booked) / %(interval)s::float8) AS free
    ) AS due
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN free >= %(least)s::integer THEN least(free, %(most)s::integer)::integer
            ELSE 0
        END AS number
    ) AS permits
)
RETURNING
    granted,
    CASE granted
        WHEN 0 THEN (
            "bookedUntil" + ceil(%(least)s::integer * %(interval)s::float8)::bigint
            - %(burst)s::bigint - (SELECT now FROM clock)
        )
        ELSE 0
    END
"""

# Lock an idempotency key until the end of the transaction; false if another request has it, or one
# of a key with the same hash.
TRY_KEY: Final[LiteralString] = """
SELECT pg_try_advisory_xact_lock(
    hashtextextended((%(scope)s::text || '|' || %(key)s::text) COLLATE "C", 1726099841030127)
)
"""

# The answer of a key, unless it is too old. Reads: idempotency_scope_key.
READ_ANSWER: Final[LiteralString] = f"""{CLOCK}
SELECT "requestHash", status, answer
FROM delayed_queue_idempotency_key
WHERE scope = %(scope)s
    AND key = %(key)s
    AND "createdAt" > (SELECT now FROM clock) - %(age)s::bigint
"""

# Save an answer under TRY_KEY; it replaces one that is too old.
# Reads: idempotency_scope_key.
SAVE_ANSWER: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_idempotency_key (
    scope, key, "requestHash", status, answer, "createdAt"
)
SELECT %(scope)s, %(key)s, %(request_hash)s::bytea, %(status)s, %(answer)s, now
FROM clock
ON CONFLICT (scope, key) DO UPDATE
SET "requestHash" = EXCLUDED."requestHash",
    status = EXCLUDED.status,
    answer = EXCLUDED.answer,
    "createdAt" = EXCLUDED."createdAt"
"""

# Delete answers older than the age, one bounded batch at a time. Two limits as in a claim.
# Reads: idempotency_created.
PRUNE_ANSWERS: Final[LiteralString] = f"""{CLOCK}
DELETE FROM delayed_queue_idempotency_key
WHERE id = ANY (ARRAY(
    SELECT id
    FROM (
        SELECT id
        FROM delayed_queue_idempotency_key
        WHERE "createdAt" <= (SELECT now FROM clock) - %(age)s::bigint
        ORDER BY "createdAt", id
        LIMIT (SELECT %(limit)s::integer)
        FOR UPDATE SKIP LOCKED
    ) AS oldest
    LIMIT %(limit)s::integer
))
"""

M = TypeVar("M", bound=models.Model)


class PermitsRow(NamedTuple):
    """The number of permits taken; if none, the microseconds until some are due."""

    granted: int
    wait: int


class RateManager(models.Manager[M]):
    """The statement of the buckets."""

    def take(
        self,
        name: str,
        least: int,
        most: int,
        *,
        interval: float,
        burst: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> PermitsRow:
        """Take from ``least`` to ``most`` permits, or none; all times are in microseconds.

        A permit books ``interval``; ``burst`` is how much may be booked ahead. In a transaction
        the bucket stays locked until its end, and a rollback puts the permits back.
        """
        params = {
            "name": name, "least": least, "most": most, "interval": interval, "burst": burst,
            "now": now,
        }  # fmt: skip
        return rows_of(PermitsRow, fetch(using, TAKE_PERMITS, params))[0]


class AnswerRow(NamedTuple):
    """An answer kept under an idempotency key."""

    request_hash: bytes
    status: int
    answer: str


class IdempotencyKeyManager(models.Manager[M]):
    """The statements of idempotency keys."""

    def hold(
        self, scope: str, key: str, age: int, *, using: str = DEFAULT_DB_ALIAS
    ) -> tuple[bool, AnswerRow | None]:
        """Lock the key in a new transaction; return whether that worked, and the kept answer.

        An answer older than ``age`` is ignored.
        """
        params = {"scope": scope, "key": key, "age": age, "now": None}
        # Two statements: the second sees what the previous holder has committed.
        steps: list[Step] = [(TRY_KEY, {"scope": scope, "key": key}), (READ_ANSWER, params)]
        ((is_held,),), rows = run(using, steps, savepoint=False)
        return is_held, first_row(AnswerRow, rows)

    def save(
        self, scope: str, key: str, answer: AnswerRow, *, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        """Save the answer of the key."""
        execute(using, SAVE_ANSWER, {"scope": scope, "key": key, **answer._asdict(), "now": None})

    def prune(self, age: int, *, limit: int = 1000, using: str = DEFAULT_DB_ALIAS) -> int:
        """Delete up to ``limit`` answers older than the age; return how many."""
        return execute(using, PRUNE_ANSWERS, {"age": age, "limit": limit, "now": None})
