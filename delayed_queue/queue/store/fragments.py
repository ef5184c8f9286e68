"""Fragments that several statements of the queue share."""

from __future__ import annotations

from typing import Final, LiteralString

# Our columns belong to the version of the message that "versionAt" names by its "createdAt". A
# service of another language that writes a new version names none of them; what they say of the
# version before is then read as absent (Q4, Q36). NULL: nothing was written there yet.
ATTEMPTS: Final[LiteralString] = """CASE WHEN "versionAt" <> "createdAt" THEN 0 ELSE attempts END"""
HEADERS: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE headers END"""
)
FIRST_ERROR: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "firstError" END"""
)
LAST_ERROR: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "lastError" END"""
)

# From here on the other columns are right as they are, until a new version is written.
TAKEN_OVER: Final[LiteralString] = (
    """headers = """
    + HEADERS
    + """,
    "firstError" = """
    + FIRST_ERROR
    + """,
    "lastError" = """
    + LAST_ERROR
    + """,
    "versionAt" = "createdAt\""""
)
# What a claim sets beside the lease: one more delivery.
DELIVERED: Final[LiteralString] = """attempts = """ + ATTEMPTS + """ + 1, """ + TAKEN_OVER

# Tell who holds the lease of a row that it ends: all workers listen, and the one that holds it
# asks what is left of it. Sent at the commit, once for a lease, and only where there is one:
# NOTIFY takes a lock of the whole database. Not while somebody lets the notifications pile up,
# which would fail the statement: then the next renewal of the lease finds out.
TELL_HOLDER: Final[LiteralString] = """CASE
        WHEN stored."lockUuid" IS NOT NULL AND pg_notification_queue_usage() < 0.5
        THEN pg_notify('delayed_queue_leases', stored."lockUuid")::text
    END"""

# A new life under the old key: the lease ends, attempts and errors start anew (Q4). What tells its
# holder is empty or NULL.
REPLACE: Final[LiteralString] = (
    """
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
    "createdAt" = EXCLUDED."createdAt",
    headers = EXCLUDED.headers,
    "lockUuid" = NULLIF("""
    + TELL_HOLDER
    + """, ''),
    "dueAt" = NULL,
    attempts = 0,
    "firstError" = NULL,
    "lastError" = NULL,
    "versionAt" = EXCLUDED."createdAt\""""
)

# Q3: a repeated offer is recognised by payload bytes and first schedule alone.
IF_CHANGED: Final[LiteralString] = """
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
"""


def offering_again(first_schedule: LiteralString) -> LiteralString:
    """Return the CTE of messages made of the newest letters, due now, as first attempts.

    Behind it stands which letters are left out. ``first_schedule``: when they are said to have
    been due first.
    """
    return (
        """
offered AS (
    INSERT INTO delayed_queue AS stored (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt"
    )
    SELECT "pKey", "pKind", payload, now, """
        + first_schedule
        + """, now, headers, now
    FROM newest
    CROSS JOIN clock"""
    )
