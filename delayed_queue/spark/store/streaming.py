"""Reading through Spark, and leasing for its streams."""

from __future__ import annotations

from typing import Final, LiteralString, NamedTuple

from delayed_queue.db.sql import CLOCK
from delayed_queue.queue.store.claim import lease_due, select_due
from delayed_queue.queue.store.fragments import ALL_TIMES, ATTEMPTS, HEADERS

# Read what a job needs before it starts: the database's clock, which it uses from here on; how
# many connections are left to its role and how many there are; whether the tables are there.
# Reads: no table of ours.
LOOK_AROUND: Final[LiteralString] = """
SELECT
    floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint,
    current_setting('max_connections')::integer
        - current_setting('superuser_reserved_connections')::integer,
    (
        SELECT count(*)
        FROM pg_stat_get_activity(NULL)
        WHERE datid <> 0
    ),
    to_regclass('delayed_queue') IS NOT NULL,
    to_regclass('delayed_queue_offer_ledger') IS NOT NULL
"""

# Which database this is: its name, and the number that its server has kept since it was set up,
# also as a standby that took over. Reads: no table of ours.
WHICH_DATABASE: Final[LiteralString] = """
SELECT current_database()::text, system_identifier::text
FROM pg_control_system()
"""

# The first and the last id, from which ranges are cut, and the instant that states are judged by.
# Reads: the primary key, its two ends.
ID_RANGE: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    (SELECT id FROM delayed_queue ORDER BY id LIMIT 1),
    (SELECT id FROM delayed_queue ORDER BY id DESC LIMIT 1),
    now
FROM clock
"""
)

# Ids of a kind, or of all, that cut its messages into parts of about as many each, found in a
# sample of so many pages. By the span of ids one old message would have a part of its own, and
# all others one together. Reads: pages of the table, a few thousand at the most.
SAMPLED_CUTS: Final[LiteralString] = """
SELECT min(id)
FROM (
    SELECT id, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS total
    FROM delayed_queue
    TABLESAMPLE SYSTEM (LEAST(
        100, 100.0 * 8192 * %(pages)s::bigint / GREATEST(pg_relation_size('delayed_queue'), 1)
    ))
    WHERE %(kind)s::text IS NULL OR "pKind" = %(kind)s
) AS sampled
GROUP BY place * LEAST(%(parts)s::bigint, total) / total
ORDER BY min(id)
"""

_COLUMNS: Final[LiteralString] = (
    """
SELECT
    id,
    "pKey"::text AS key,
    "pKind"::text AS kind,
    payload,
    "scheduledAt" AS scheduled_at,
    "scheduledAtInitially" AS scheduled_at_initially,
    "createdAt" AS created_at,
    CASE
        WHEN "scheduledAt" <= %(now)s::bigint THEN 'due'
        WHEN "lockUuid" IS NULL THEN 'scheduled'
        ELSE 'leased'
    END AS state,
    """
    + ATTEMPTS
    + """ AS attempts,
    "lockUuid"::text AS lock_uuid,
    ("""
    + HEADERS
    + """)::text AS headers,
    "dueAt" AS due_at,
    "group"::text AS "group"
FROM delayed_queue"""
)

# The messages of a range of ids, whatever their state. Wrapped in a SELECT of the columns and
# filters that are wanted, into which PostgreSQL folds it: what is not wanted is not read.
# Reads: the primary key.
READ_RANGE: Final[LiteralString] = (
    _COLUMNS
    + """
WHERE id >= %(first)s::bigint
    AND id < %(last)s::bigint
"""
)

# The messages of a kind under a lease, within a range of ids; wrapped as READ_RANGE is. A pure
# read, so that a task and its repetition agree. The kind is compared as an expression, here and
# below, so that the index of all that is due of it is not read in place of the lease's.
# Reads: delayed_queue__LockUuidPlusIdIndex.
READ_LEASED: Final[LiteralString] = (
    _COLUMNS
    + """
WHERE "lockUuid" = %(lease_id)s
    AND "pKind" || '' = %(kind)s
    AND id >= %(first)s::bigint
    AND id < %(last)s::bigint
"""
)

# Lease the earliest due messages for one batch of a stream. Returns how many there are, and how
# many were delivered before: tasks read them, not the driver. "cutoff" is the start of a query that
# takes what is there, so that it ends although more arrives; NULL for one that goes on.
# Reads: as CLAIM.
LEASE_DUE: Final[LiteralString] = f"""{CLOCK},
leased AS ({
    lease_due(
        select_due(until="LEAST(now, %(cutoff)s::bigint)"),
        lease_id="%(lease_id)s::varchar",
        returning="attempts",
    )
})
SELECT count(*), count(*) FILTER (WHERE attempts > 1)
FROM leased
"""

# What a stream has not leased yet: how many are due, up to a cap, and for how long the earliest is,
# in milliseconds; NULL when none is. Two limits as in select_due.
# Reads: delayed_queue__KindPlusScheduledAtIndex, its beginning.
BACKLOG: Final[LiteralString] = (
    CLOCK
    + """
SELECT count(*), (SELECT now FROM clock) - min(due_at)
FROM (
    SELECT due_at
    FROM (
        SELECT "scheduledAt" AS due_at
        FROM delayed_queue
        WHERE "scheduledAt" <= (SELECT now FROM clock)
            AND "pKind" = %(kind)s
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(cap)s::integer)
    ) AS earliest
    LIMIT %(cap)s::integer
) AS due
"""
)

# Whether the database has ever had the queue, as far as its tables remember; and whether rules
# hold its messages back from a stream: limits, or a pause. One descent into each index.
# Reads: delayed_queue__KindPlusScheduledAtIndex, dead_letter_kind_died, limit_kind_group,
# schedule_kind_prefix, delayed_queue_sample_pkey.
QUEUE_RULES: Final[LiteralString] = (
    """
WITH message AS (
    SELECT "pKind"
    FROM delayed_queue
    WHERE "pKind" = %(kind)s
        AND """
    + ALL_TIMES
    + """
    ORDER BY "scheduledAt", id
    LIMIT 1
),
letter AS (
    SELECT "pKind"
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s
    ORDER BY "diedAt", id
    LIMIT 1
),
rule AS (
    SELECT "group", "pausedAt"
    FROM delayed_queue_limit
    WHERE "pKind" = %(kind)s
    ORDER BY "group"
    LIMIT 1
),
schedule AS (
    SELECT "pKind"
    FROM delayed_queue_schedule
    WHERE "pKind" = %(kind)s
    ORDER BY "keyPrefix"
    LIMIT 1
),
sample AS (
    SELECT "pKind"
    FROM delayed_queue_sample
    WHERE "pKind" = %(kind)s
    ORDER BY minute
    LIMIT 1
)
SELECT
    EXISTS (SELECT 1 FROM message)
        OR EXISTS (SELECT 1 FROM letter)
        OR EXISTS (SELECT 1 FROM rule)
        OR EXISTS (SELECT 1 FROM schedule)
        OR EXISTS (SELECT 1 FROM sample),
    EXISTS (SELECT 1 FROM rule),
    EXISTS (SELECT 1 FROM rule WHERE "group" = '' AND "pausedAt" IS NOT NULL)
"""
)

# The messages under a lease cut into pieces of as many each, whatever their ids are: of each the
# first id and the one behind its last, and the instant that states are judged by. No piece is
# smaller than "least" but the only one. Reads: delayed_queue__LockUuidPlusIdIndex.
LEASED_PIECES: Final[LiteralString] = (
    CLOCK
    + """,
leased AS (
    SELECT id, row_number() OVER (ORDER BY id) - 1 AS place, count(*) OVER () AS total
    FROM delayed_queue
    WHERE "lockUuid" = %(lease_id)s
)
SELECT min(id), max(id) + 1, (SELECT now FROM clock)
FROM leased
GROUP BY place * LEAST(%(most)s::bigint, GREATEST(total / %(least)s::bigint, 1)) / total
ORDER BY min(id)
"""
)

# Count a delivery of a message by a task that is repeated, because the one before has died and it
# may be the message that kills; of one that is no longer under the lease, nothing.
# Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
COUNT_DELIVERY: Final[LiteralString] = """
UPDATE delayed_queue
SET attempts = attempts + 1
WHERE id = %(id)s::bigint
    AND "lockUuid" = %(lease_id)s
RETURNING attempts
"""

# Prolong a lease that a batch is still working under, never shorten it; also one that ran out,
# as long as nobody has taken its messages. Reads: delayed_queue__LockUuidPlusIdIndex.
RENEW_LEASE: Final[LiteralString] = (
    CLOCK
    + """,
renewed AS (
    UPDATE delayed_queue
    SET "scheduledAt" = GREATEST(
        "scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint
    )
    WHERE "lockUuid" = %(lease_id)s
    RETURNING id
)
SELECT count(*)
FROM renewed
"""
)

# Take over a lease of a kind from a process that is gone. The batch that it was at work on keeps
# its id, and is delivered once more; what it had leased ahead, which nobody has seen, gets a new
# one. Both ids are looked for then: a repetition finds what the first try has moved.
# Reads: delayed_queue__LockUuidPlusIdIndex.
TAKE_OVER_LEASE: Final[LiteralString] = (
    CLOCK
    + """,
taken AS (
    UPDATE delayed_queue
    SET "lockUuid" = %(lease_id)s::varchar,
        "scheduledAt" = GREATEST(
            "scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint
        ),
        attempts = attempts + %(deliveries)s::integer
    WHERE "lockUuid" = ANY (%(lease_ids)s::text[])
        AND "pKind" || '' = %(kind)s
    RETURNING attempts
)
SELECT count(*), count(*) FILTER (WHERE attempts > 1)
FROM taken
"""
)


class AroundRow(NamedTuple):
    """The clock, the server's connections, and whether the tables are there."""

    now: int
    most_connections: int
    used_connections: int
    has_queue: bool
    has_ledger: bool


class LeasedRow(NamedTuple):
    """The number of messages that were leased, and of those that were delivered before."""

    number: int
    redelivered: int


class BacklogRow(NamedTuple):
    """The number of due messages, and for how long the earliest is, None where none is."""

    due: int
    oldest: int | None


class RulesRow(NamedTuple):
    """Whether the queue is known, has rules that hold it back, and is paused as a whole."""

    is_known: bool
    has_rules: bool
    is_paused: bool


class PieceRow(NamedTuple):
    """The first id of a piece, the one behind its last, and the clock."""

    first: int
    last: int
    now: int


class RangeRow(NamedTuple):
    """The first and the last id, None where there is no message, and the clock."""

    first: int | None
    last: int | None
    now: int
