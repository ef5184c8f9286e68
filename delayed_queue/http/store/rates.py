"""Rate limits: the statement, and the manager that runs it."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.rows import first_row
from delayed_queue.db.statements import fetch

# In microseconds: in milliseconds the permits of a high rate would have no size.
_CLOCK: Final[LiteralString] = """
WITH clock AS MATERIALIZED (
    SELECT COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000000)::bigint
    ) AS now
)"""

# Until when time is booked: a bucket that was not used for long has no credit beyond its burst.
# One that is booked for longer than its burst and a minute was so under another limit, or by a
# clock that was set back: it begins anew instead of refusing until then.
_BOOKED: Final[LiteralString] = """
    CASE
        WHEN rate."bookedUntil" > (SELECT now FROM clock) + %(burst)s::bigint + 60000000
            THEN (SELECT now FROM clock)
        ELSE greatest(rate."bookedUntil", (SELECT now FROM clock))
    END"""

_LEFT: Final[LiteralString] = (
    """
    floor(((SELECT now FROM clock) + %(burst)s::bigint - ("""
    + _BOOKED
    + """
    )) / %(interval)s::float8)"""
)

# Take as many permits as there are, from ``least`` to ``most``, and answer how many; with fewer
# than ``least`` take none, and answer the microseconds until there are so many, if nobody else
# takes them. A permit books ``interval`` microseconds, and no more than ``burst`` microseconds
# are booked ahead (the generic cell rate algorithm): in any time t no more than burst + t are.
#
# One statement: the row's lock, which ON CONFLICT takes, is what makes takers queue up, and each
# reads what the one before has left. ``granted`` is a column because RETURNING must tell it. The
# clock is read when the statement starts; one that waited for the lock uses an earlier time
# than the one before it, and is given less, never more. The second branch looks at the snapshot,
# so that its wait may be too short, below zero even, and a younger row is not seen by it at all.
# Reads: rate_name.
TAKE_PERMITS: Final[LiteralString] = (
    _CLOCK
    + """,
taken AS (
    INSERT INTO delayed_queue_rate AS rate (name, granted, "bookedUntil")
    SELECT
        %(name)s,
        %(most)s::integer,
        now + ceil(%(most)s::integer * %(interval)s::float8)::bigint
    FROM clock
    ON CONFLICT (name) DO UPDATE
    SET granted = least(%(most)s::integer,"""
    + _LEFT
    + """)::integer,
        "bookedUntil" ="""
    + _BOOKED
    + """ + ceil(least(%(most)s::integer,"""
    + _LEFT
    + """) * %(interval)s::float8)::bigint
    WHERE"""
    + _LEFT
    + """ >= %(least)s::integer
    RETURNING granted
)
SELECT granted, 0 AS wait
FROM taken
UNION ALL
SELECT
    0,
    ("""
    + _BOOKED
    + """ + ceil(%(least)s::integer * %(interval)s::float8)::bigint
        - %(burst)s::bigint - (SELECT now FROM clock))::bigint
FROM delayed_queue_rate AS rate
WHERE rate.name = %(name)s
    AND NOT EXISTS (SELECT 1 FROM taken)
"""
)

M = TypeVar("M", bound=models.Model)


class PermitsRow(NamedTuple):
    """The number of permits taken; if none, the microseconds until there may be some."""

    granted: int
    wait: int


class RateManager(models.Manager[M]):
    """The statement of the buckets, in the manner of MessageManager."""

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
        found = first_row(PermitsRow, fetch(using, TAKE_PERMITS, params))
        if found is not None and (found.granted or found.wait > 0):
            return found
        # Somebody emptied the bucket, or made it, after the statement began, which did not see it.
        return PermitsRow(0, max(round(least * interval), 1))
