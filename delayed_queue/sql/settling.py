"""Ending leases and changing them, by answers and for processes that died."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import (
    ATTEMPTS,
    CLOCK,
    FIRST_ERROR,
    HEADERS,
    LAST_ERROR,
    TAKEN_OVER,
)

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

# Give back all that is under leases whose messages nobody has seen, but the named ones: the
# delivery is taken off the count.
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

# End leases whose holder is gone. What had been begun, and what was under the leases of suspects,
# carries a mark from now on: the id of a lease that nobody holds, by which those who claim it see
# that a delivery ended without an answer. Of what had not been begun the delivery is taken off the
# count; of what had, unless the refund is 0, all but the first: so however often an innocent
# message is beside one that kills its process, it loses one attempt at most.
# Reads: delayed_queue__LockUuidPlusIdIndex.
GIVE_BACK: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET "scheduledAt" = (SELECT now FROM clock),
    "lockUuid" = CASE
        WHEN id = ANY (%(begun)b::bigint[]) OR "lockUuid" = ANY (%(suspects)b::text[])
        THEN %(mark)s::varchar
    END,
    attempts = CASE
        WHEN id = ANY (%(begun)b::bigint[]) THEN GREATEST(attempts - %(refund)s::integer, 1)
        ELSE GREATEST(attempts - 1, 0)
    END
WHERE "lockUuid" = ANY (%(lease_ids)b::text[])
RETURNING id
"""
)

# Mark what a dead process had begun in a transaction that its death rolled back, and count that
# delivery: always, or (count 0) only if it is the first, as above. It was due, so one that is
# not is left alone: somebody has leased it by now, or updated it to another time.
# Reads: the primary key.
COUNT_CRASH: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue
SET attempts = GREATEST("""
    + ATTEMPTS
    + """ + %(count)s::integer, 1),
    """
    + TAKEN_OVER
    + """,
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
        id, "pKind", "pKey", payload, """
    + HEADERS
    + """ AS headers, """
    + ATTEMPTS
    + """ AS attempts, """
    + FIRST_ERROR
    + """ AS "firstError", """
    + LAST_ERROR
    + """ AS "lastError",
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

# Members of a lease as they are now, of one kind, in the order in which they fell due: those that
# were settled, updated or leased again meanwhile are not among them. The kind is compared as an
# expression, so that no index of it is read in place of these.
# Reads: the primary key, or delayed_queue__LockUuidPlusIdIndex.
LEASED_MEMBERS: Final[LiteralString] = """
SELECT
    id, "pKey", payload, "scheduledAtInitially", COALESCE("dueAt", "scheduledAt"), "scheduledAt",
    attempts, headers::text
FROM delayed_queue
WHERE id = ANY (%(ids)b::bigint[])
    AND "lockUuid" = %(lease_id)s
    AND "pKind" || '' = %(kind)s
ORDER BY COALESCE("dueAt", "scheduledAt"), id
"""
