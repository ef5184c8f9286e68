"""Endpoints of callbacks, the state of their hosts, their slots, and the log of attempts."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK

# The registered prefixes of an origin, for the caller to choose the longest that matches.
# Reads: endpoint_origin_prefix.
ENDPOINTS: Final[LiteralString] = """
SELECT
    id, prefix, secret, "previousSecret", "rotatedAt", "disabledAt", "perSecond", burst, concurrency
FROM delayed_queue_endpoint
WHERE origin = %(origin)s
ORDER BY origin, prefix
LIMIT %(limit)s::integer
"""

# The first secret stands: of several workers that meet a new origin one makes its endpoint.
# Reads: endpoint_origin_prefix.
ADD_ENDPOINT: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_endpoint (origin, prefix, secret, "createdAt")
SELECT %(origin)s, %(prefix)s, %(secret)s, now
FROM clock
ON CONFLICT (origin, prefix) DO NOTHING
RETURNING id
"""
)

# The first reason stands. Reads: the primary key.
DISABLE_ENDPOINT: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_endpoint
SET "disabledAt" = (SELECT now FROM clock),
    "disabledReason" = %(reason)s
WHERE id = %(id)s
    AND "disabledAt" IS NULL
RETURNING id
"""
)

# How long the host stays open, and whether somebody probes it, in milliseconds from now. No row:
# closed. Reads: host_name.
READ_HOST: Final[LiteralString] = (
    CLOCK
    + """
SELECT "openUntil" - now, "probeUntil" - now
FROM delayed_queue_host
CROSS JOIN clock
WHERE name = %(host)s
    AND "openUntil" IS NOT NULL
"""
)

# Open a closed host. One that is open already stays as it is: results of callbacks that were on
# their way do not prolong it. Reads: host_name.
OPEN_HOST: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_host AS host (name, "openedAt", "openUntil", openings, reason)
SELECT %(host)s, now, now + %(pause)s::bigint, 1, %(reason)s
FROM clock
ON CONFLICT (name) DO UPDATE
SET "openedAt" = EXCLUDED."openedAt",
    "openUntil" = EXCLUDED."openUntil",
    openings = 1,
    reason = EXCLUDED.reason,
    "probeBy" = NULL,
    "probeUntil" = NULL
WHERE host."openUntil" IS NULL
RETURNING id
"""
)

# Take the one probe of a host that is half open: its pause is over, and nobody probes it, or who
# did has not answered in time. The row's lock lets one in; the others look again at what that
# left. Reads: host_name.
PROBE_HOST: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_host
SET "probeBy" = %(by)s,
    "probeUntil" = (SELECT now FROM clock) + %(patience)s::bigint
WHERE name = %(host)s
    AND "openUntil" <= (SELECT now FROM clock)
    AND ("probeUntil" IS NULL OR "probeUntil" <= (SELECT now FROM clock))
RETURNING id
"""
)

# What the probe found; of one that was given to another meanwhile nothing is believed. A host that
# still fails stays open twice as long as before, up to the longest pause; one that was not probed
# after all is left to the next. Reads: host_name.
END_PROBE: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_host
SET "openUntil" = CASE %(outcome)s::text
        WHEN 'succeeded' THEN NULL
        WHEN 'failed' THEN (SELECT now FROM clock) + least(
            %(longest)s::bigint, %(pause)s::bigint * (2 ^ least(openings, 20))::bigint
        )
        ELSE "openUntil"
    END,
    openings = CASE %(outcome)s::text
        WHEN 'succeeded' THEN 0
        WHEN 'failed' THEN openings + 1
        ELSE openings
    END,
    "probeBy" = NULL,
    "probeUntil" = NULL
WHERE name = %(host)s
    AND "probeBy" = %(by)s
RETURNING id
"""
)

# Put off a bite of what is due for a host that takes nothing now, as RELEASE does what was leased
# for it, without a lease for each. No longer than the host is open, or the delay if that is longer;
# where neither is, nothing. Only the holder of the lock does it, one for each kind and host, until
# the end of the transaction: the others are told by no row, and do not look at a message.
# "looked" ends the bite after so many messages of any host: a statement is short also where few of
# them are for this one. The limits are for the planner, as of _EARLIEST_DUE.
# No leased message is touched, also none whose lease ran out; what others hold is passed over. The
# urls are compared with the beginnings of those that were met, byte by byte and with the sign
# after the host, so none of another host is meant.
# Its commit waits for no disk: what a crash of the server undoes is due as before.
# They come back in their order, the first when the time is over, half of the spread later as many
# as "half" says, none later than the spread: few while a probe is under way, and then more.
# Reads: delayed_queue__KindPlusScheduledAtIndex in order, from the end of the bite before;
# host_name; the primary key.
PUT_OFF_BACKLOG: Final[LiteralString] = (
    CLOCK
    + """,
turn AS MATERIALIZED (
    SELECT greatest(now + %(delay)s::bigint, (
        SELECT "openUntil"
        FROM delayed_queue_host
        WHERE name = %(host)s
            AND "openUntil" > (SELECT now FROM clock)
    )) AS due_at
    FROM clock
    WHERE pg_try_advisory_xact_lock(
            hashtextextended(%(kind)s::text || ' ' || %(host)s::text, 2886024109431760)
        )
        AND set_config('synchronous_commit', 'off', TRUE) IS NOT NULL
),
looked AS MATERIALIZED (
    SELECT due_at, id
    FROM (
        SELECT "scheduledAt" AS due_at, id
        FROM delayed_queue
        WHERE "pKind" = %(kind)s
            AND ("scheduledAt", id) > (%(after)s::bigint, %(after_id)s::bigint)
            AND "scheduledAt" <= (SELECT now FROM clock)
            AND (SELECT due_at FROM turn) IS NOT NULL
        ORDER BY "scheduledAt", id
        LIMIT (SELECT %(limit)s::integer)
    ) AS due
    OFFSET %(limit)s::integer - 1
    LIMIT 1
),
put_off AS (
    UPDATE delayed_queue AS message
    SET "scheduledAt" = (SELECT due_at FROM turn)
        + %(spread)s::bigint * (%(ahead)s::bigint + chosen.place)
        / (%(ahead)s::bigint + chosen.place + %(half)s::bigint)
    FROM unnest(ARRAY(
        SELECT id
        FROM (
            SELECT id
            FROM delayed_queue
            WHERE "pKind" = %(kind)s
                AND ("scheduledAt", id) > (%(after)s::bigint, %(after_id)s::bigint)
                AND ("scheduledAt", id) <= (
                    COALESCE((SELECT due_at FROM looked), (SELECT now FROM clock)),
                    COALESCE((SELECT id FROM looked), 9223372036854775807)
                )
                AND "lockUuid" IS NULL
                AND (headers ->> 'url') || '/' ^@ ANY (%(prefixes)b::text[])
                AND (SELECT due_at FROM turn) IS NOT NULL
            ORDER BY "scheduledAt", id
            LIMIT (SELECT %(limit)s::integer)
            FOR UPDATE SKIP LOCKED
        ) AS due
        LIMIT %(limit)s::integer
    )) WITH ORDINALITY AS chosen (id, place)
    WHERE message.id = chosen.id
    RETURNING message.id
)
SELECT (SELECT count(*) FROM put_off), looked.due_at, looked.id
FROM turn
LEFT JOIN looked ON TRUE
WHERE turn.due_at IS NOT NULL
"""
)

# Hold messages that are still under their leases until the end of the transaction: who deletes,
# updates or extends one waits for it. One that somebody is changing is passed over, as are those
# that are gone. Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
HOLD_LEASED: Final[LiteralString] = """
SELECT id, "lockUuid"
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
FOR SHARE SKIP LOCKED
"""

# Hold the endpoint's slots for a change. In a statement of its own: what comes after it has a
# snapshot that sees what earlier holders committed. Reads: the primary key.
LOCK_SLOTS: Final[LiteralString] = """
SELECT concurrency
FROM delayed_queue_endpoint
WHERE id = %(id)s
FOR NO KEY UPDATE
"""

# Take as many of the wanted slots as others have left, and forget those of holders who have not
# renewed theirs: a worker that died gives back by silence. To run under LOCK_SLOTS.
# Reads: slot_endpoint_holder.
HOLD_SLOTS: Final[LiteralString] = (
    CLOCK
    + """,
silent AS (
    DELETE FROM delayed_queue_slot
    WHERE endpoint_id = %(id)s
        AND "heldUntil" <= (SELECT now FROM clock)
        AND holder <> %(holder)s
),
taken AS (
    SELECT COALESCE(sum(held), 0) AS slots
    FROM delayed_queue_slot
    WHERE endpoint_id = %(id)s
        AND "heldUntil" > (SELECT now FROM clock)
        AND holder <> %(holder)s
)
INSERT INTO delayed_queue_slot (endpoint_id, holder, held, "heldUntil")
SELECT
    %(id)s,
    %(holder)s,
    greatest(least(%(wanted)s::integer, %(concurrency)s::integer - taken.slots), %(used)s::integer),
    clock.now + %(patience)s::bigint
FROM clock
CROSS JOIN taken
ON CONFLICT (endpoint_id, holder) DO UPDATE
SET held = EXCLUDED.held,
    "heldUntil" = EXCLUDED."heldUntil"
RETURNING held
"""
)

# Log attempts, many at once. Reads: nothing.
ADD_ATTEMPTS: Final[LiteralString] = """
INSERT INTO delayed_queue_callback_attempt (
    key, topic, kind, "webhookId", attempt, "startedAt", duration, status, failure, detail,
    address, excerpt, "isAmbiguous", endpoint_id
)
SELECT
    key, topic, kind, webhook_id, attempt, started_at, duration, status, failure, detail,
    address, excerpt, is_ambiguous, endpoint_id
FROM unnest(
    %(keys)b::text[], %(topics)b::text[], %(kinds)b::text[], %(webhook_ids)b::text[],
    %(attempts)b::integer[], %(started_ats)b::bigint[], %(durations)b::integer[],
    %(statuses)b::integer[], %(failures)b::text[], %(details)b::text[], %(addresses)b::text[],
    %(excerpts)b::text[], %(are_ambiguous)b::boolean[], %(endpoint_ids)b::bigint[]
) AS attempt (
    key, topic, kind, webhook_id, attempt, started_at, duration, status, failure, detail,
    address, excerpt, is_ambiguous, endpoint_id
)
"""

# The attempts of a job, in one topic or in all, in the order in which they were logged.
# Reads: attempt_key.
ATTEMPTS_OF_JOB: Final[LiteralString] = """
SELECT
    id, key, topic, "webhookId", attempt, "startedAt", duration, status, failure, detail, address,
    excerpt, "isAmbiguous", endpoint_id
FROM delayed_queue_callback_attempt
WHERE key = %(key)s
    AND id > %(after)s
    AND (%(topic)s::text IS NULL OR topic = %(topic)s::text)
ORDER BY key, id
LIMIT %(limit)s::integer
"""

# Delete attempts older than the age, the oldest first, passing over those that another prune holds.
# Reads: attempt_started, then the primary key.
PRUNE_ATTEMPTS: Final[LiteralString] = (
    CLOCK
    + """
DELETE FROM delayed_queue_callback_attempt
WHERE id = ANY (ARRAY(
    SELECT id
    FROM delayed_queue_callback_attempt
    WHERE "startedAt" < (SELECT now FROM clock) - %(age)s::bigint
    ORDER BY "startedAt", id
    LIMIT (SELECT %(limit)s::integer)
    FOR UPDATE SKIP LOCKED
))
"""
)
