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
TAKEN_OVER: Final[LiteralString] = f"""headers = {HEADERS},
    "firstError" = {FIRST_ERROR},
    "lastError" = {LAST_ERROR},
    "versionAt" = "createdAt\""""


def crash_error(last_error: LiteralString) -> LiteralString:
    """Return the last error after one more crash: numbered, above those of earlier crashes."""
    return f"""concat(
            'Crash ', 1 + COALESCE(
                substring({last_error} FROM '^Crash ([0-9]{{1,6}}): ')::integer, 0
            ), ': ', %(error)s::text,
            E'\\n' || left(substring({last_error} FROM '^Crash [0-9].*'), 2000)
        )"""


# The columns of LeasedRow but its last two.
LEASED_COLUMNS: Final[LiteralString] = """id, "pKey", payload, "scheduledAtInitially", "dueAt",
    "scheduledAt", attempts, headers::text"""

# True of every message: without a word on due times, PostgreSQL does not see that the index of due
# times, which is partial, has them all.
ALL_TIMES: Final[LiteralString] = """"scheduledAt" >= '-9223372036854775808'::bigint"""

# The lock of claims that are made one at a time: one per kind, until the end of the transaction,
# so that it asks nothing of a pooler and dies with its holder. The number keeps it apart from an
# application's own advisory locks; kinds with one hash would wait for each other, and nothing
# worse.
KIND_LOCK: Final[LiteralString] = "hashtextextended(%(kind)s::text, 7310600482201519)"

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
REPLACE: Final[LiteralString] = f"""
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
    "createdAt" = EXCLUDED."createdAt",
    headers = EXCLUDED.headers,
    "group" = EXCLUDED."group",
    "lockUuid" = NULLIF({TELL_HOLDER}, ''),
    "dueAt" = NULL,
    attempts = 0,
    "firstError" = NULL,
    "lastError" = NULL,
    "versionAt" = EXCLUDED."createdAt\""""

# Q3: a repeated offer is recognised by payload bytes and first schedule alone.
IF_CHANGED: Final[LiteralString] = """
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
"""


def offering_again(first_schedule: LiteralString) -> LiteralString:
    """Return a CTE that offers the newest letters as first attempts, due now; add conditions.

    A letter of a group keeps its old position, before messages that it may have held up. It is due
    after its first schedule, like a message that was begun.
    """
    return f"""
offered AS (
    INSERT INTO delayed_queue AS stored (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group"
    )
    SELECT
        "pKey", "pKind", payload,
        CASE WHEN "group" IS NULL THEN now ELSE LEAST(now, "scheduledAtInitially" + 1) END,
        CASE WHEN "group" IS NULL THEN {first_schedule} ELSE "scheduledAtInitially" END,
        now, headers, now, "group"
    FROM newest
    CROSS JOIN clock"""
