"""Operators' statements about callbacks: close and open hosts, recall what was deferred."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK

# Close an open or half open host. The result of a probe under way is then ignored by END_PROBE.
# Reads: host_name.
CLOSE_HOST: Final[LiteralString] = """
UPDATE delayed_queue_host
SET "openUntil" = NULL,
    openings = 0,
    "probeBy" = NULL,
    "probeUntil" = NULL
WHERE name = %(host)s
    AND "openUntil" IS NOT NULL
RETURNING id
"""

# Leave a host alone for so long from now, whether it is closed, half open, or open for less.
# Reads: host_name.
SHUT_HOST: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_host
SET "openedAt" = (SELECT now FROM clock),
    "openUntil" = (SELECT now FROM clock) + %(pause)s::bigint,
    openings = 1,
    reason = %(reason)s,
    "probeBy" = NULL,
    "probeUntil" = NULL
WHERE name = %(host)s
    AND COALESCE("openUntil" < (SELECT now FROM clock) + %(pause)s::bigint, true)
RETURNING id
"""
)

# The next messages of a kind that are due within the horizon, a page at a time, each with its url
# if it was deferred: due later than its offer said, though no delivery of it has failed. Jobs that
# wait by their ladder are left out, and so are jobs that were offered for later.
# Reads: delayed_queue__KindPlusScheduledAtIndex in order, at most the limit.
DEFERRED_JOBS: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    id,
    "scheduledAt",
    CASE
        WHEN "lockUuid" IS NULL AND attempts = 0 AND "scheduledAt" > "scheduledAtInitially"
        THEN headers ->> 'url'
    END
FROM (
    SELECT id, "scheduledAt", "scheduledAtInitially", "lockUuid", attempts, headers
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND ("scheduledAt", id) > (
            GREATEST(%(after)s::bigint, (SELECT now FROM clock)), %(after_id)s::bigint
        )
        AND "scheduledAt" <= (SELECT now FROM clock) + %(horizon)s::bigint
    ORDER BY "scheduledAt", id
    LIMIT (SELECT %(limit)s::integer)
) AS ahead
ORDER BY "scheduledAt", id
LIMIT %(limit)s::integer
"""
)

# Let those of them that still wait be due after the wait, at random within the spread, and none
# later than it was. What was leased, updated or is held by others meanwhile is left alone.
# Reads: the primary key.
RECALL_JOBS: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = LEAST(
    "scheduledAt",
    (SELECT now FROM clock) + %(wait)s::bigint + floor(random() * %(spread)s::bigint)::bigint
)
WHERE id = ANY (ARRAY(
    SELECT id
    FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
        AND "lockUuid" IS NULL
        AND attempts = 0
        AND "scheduledAt" > "scheduledAtInitially"
        AND "scheduledAt" > (SELECT now FROM clock) + %(wait)s::bigint
    FOR UPDATE SKIP LOCKED
))
RETURNING id
"""
)
