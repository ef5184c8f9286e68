"""Ending leases and changing them, by answers and for processes that died."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK

# Delete some members of a lease (or, with a NULL lease, rows that are not leased).
# Reads: the primary key; the lease is a filter on rows already found.
ACKNOWLEDGE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""

# Delete some members of several leases, all of which belong to the caller.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_MEMBERS: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Delete all that is still under some leases, each handled to its last member.
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASES: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""

# Delete all that is still under a lease. Members that were updated, dropped, released or
# leased again no longer carry it (Q24).
# Reads: delayed_queue__LockUuidPlusIdIndex.
ACKNOWLEDGE_LEASE: Final[LiteralString] = """
DELETE FROM delayed_queue
WHERE "lockUuid" = %(lease_id)s
"""

# Give messages back, due after the delay; %(refund)s takes deliveries that were none off the
# count (a snooze, a message nobody has begun). With a NULL delay they are due when they were before
# the lease, so that what was not begun does not go behind a long backlog. With a NULL lease it
# moves rows that are not leased: "deliver now".
# Reads: the primary key.
RELEASE: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = COALESCE(
        (SELECT now FROM clock) + %(delay)s::bigint, "dueAt", (SELECT now FROM clock)
    ),
    "lockUuid" = NULL,
    attempts = GREATEST(attempts - %(refund)s::integer, 0),
    "firstError" = COALESCE("firstError", %(error)s::text),
    "lastError" = COALESCE(%(error)s::text, "lastError")
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
RETURNING id
"""
)

# Give back what a process held when it died, all but the messages it had in hand: none of it
# was begun, so the delivery is taken off the count.
# Reads: delayed_queue__LockUuidPlusIdIndex.
RELEASE_LEASES: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock),
    "lockUuid" = NULL,
    attempts = GREATEST(attempts - 1, 0)
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
    AND id <> ALL (%(ids)b::bigint[])
RETURNING id
"""
)

# Let the leases of what a dead process had in hand run out now. The lease id stays: who claims
# next sees by it that the last delivery ended without an answer. The attempt stays counted.
# Reads: the primary key.
EXPIRE: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock)
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""
)

# Count the delivery that a dead process was in the middle of, in a transaction that its death
# rolled back, and leave the message as an expired lease would. It was due, so one that is not
# is left alone: somebody has leased it by now, or updated it to another time.
# Reads: the primary key.
COUNT_CRASH: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET attempts = attempts + 1,
    "lockUuid" = %(lease_id)s,
    "dueAt" = "scheduledAt",
    "scheduledAt" = (SELECT now FROM clock)
WHERE id = ANY (%(ids)b::bigint[])
    AND "scheduledAt" <= (SELECT now FROM clock)
RETURNING id
"""
)

# Those of the messages that another transaction holds at this moment: a write would wait for it.
# The locks taken on the others end with the statement.
# Reads: the primary key.
HELD: Final[LiteralString] = """
WITH free AS (
    SELECT id
    FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
    FOR UPDATE SKIP LOCKED
)
SELECT id
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND id NOT IN (SELECT id FROM free)
"""

# Prolong leases, never shorten them. Several leases at once, so that a worker renews all it
# holds in one statement (W3): a row matches only if it is one of the named messages *and* is
# under one of the named leases, both of which belong to the caller.
# Reads: the primary key or delayed_queue__LockUuidPlusIdIndex.
EXTEND: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = GREATEST("scheduledAt", (SELECT now FROM clock) + %(lease)s::bigint)
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id, "lockUuid", "scheduledAt"
"""
)

# Move messages to the dead letters in one statement: in the queue or there, never both, never
# neither (Q28). Reads: the primary key.
BURY: Final[LiteralString] = (
    CLOCK
    + """,
buried AS (
    DELETE FROM delayed_queue
    WHERE id = ANY (%(ids)b::bigint[])
        AND "lockUuid" IS NOT DISTINCT FROM %(lease_id)s
    RETURNING
        id, "pKind", "pKey", payload, headers, attempts, "firstError", "lastError",
        "scheduledAtInitially", "createdAt"
),
kept AS (
    INSERT INTO delayed_queue_dead_letter (
        "pKind", "pKey", payload, headers, attempts, reason, "firstError", "lastError",
        "scheduledAtInitially", "createdAt", "diedAt"
    )
    SELECT
        "pKind", "pKey", payload, headers, attempts, %(reason)s,
        COALESCE("firstError", %(error)s::text),
        COALESCE(%(error)s::text, "lastError"),
        "scheduledAtInitially", "createdAt", (SELECT now FROM clock)
    FROM buried
)
SELECT id
FROM buried
"""
)

# Members of a lease as they are now, in the order in which they fell due: those that were
# settled, updated or leased again meanwhile are not among them.
# Reads: the primary key.
LEASED_MEMBERS: Final[LiteralString] = """
SELECT
    id, "pKey", payload, "scheduledAtInitially", COALESCE("dueAt", "scheduledAt"), "scheduledAt",
    attempts, headers::text
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = %(lease_id)s
ORDER BY COALESCE("dueAt", "scheduledAt"), id
"""
