"""Fragments that several statements of the queue share."""

from __future__ import annotations

from typing import Final, LiteralString

# Our columns belong to the version of the message whose "createdAt" is "versionAt". A service of
# another language that writes a new version leaves them as they were; then they count as absent
# (Q4, Q36). NULL: nothing was written yet.
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
EXPIRES_AT: Final[LiteralString] = (
    """CASE WHEN "versionAt" <> "createdAt" THEN NULL ELSE "expiresAt" END"""
)

# Make our columns those of this version.
TAKEN_OVER: Final[LiteralString] = f"""headers = {HEADERS},
    "expiresAt" = {EXPIRES_AT},
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


# The columns of LeasedRow but its last three.
LEASED_COLUMNS: Final[LiteralString] = """id, "pKey", payload, "scheduledAtInitially", "dueAt",
    "scheduledAt", attempts, headers::text, "expiresAt" - (SELECT now FROM clock)"""

# True of every message. PostgreSQL reads the index of due times, which is partial, only for
# statements that compare due times.
ALL_TIMES: Final[LiteralString] = """"scheduledAt" >= '-9223372036854775808'::bigint"""


def first_rows(
    columns: LiteralString,
    table: LiteralString,
    where: LiteralString,
    order: LiteralString,
    *,
    limit: LiteralString = "%(cap)s::integer",
    hidden: LiteralString = "",
) -> LiteralString:
    """Return a SELECT of the first rows by an index, with two limits as in ``select_due``.

    ``hidden`` is a limit of each outer row that is below ``limit``.
    """
    return f"""SELECT {columns}
    FROM (
        SELECT {columns}
        FROM {table}
        WHERE {where}
        ORDER BY {order}
        LIMIT (SELECT {hidden or limit})
    ) AS first
    LIMIT {limit}"""


# The key of an advisory lock for claims that are made one at a time, one per kind. It belongs to
# the transaction, so it works behind poolers and ends with its holder. The number keeps it apart
# from locks of an application; kinds with the same hash wait for each other.
KIND_LOCK: Final[LiteralString] = "hashtextextended(%(kind)s::text, 7310600482201519)"

# Notify the worker whose lease ends: it checks what is left of it. Only where there is a lease,
# because NOTIFY takes a lock of the whole database at the commit. Not while notifications pile up,
# which could fail the statement: the next renewal of the lease notices as well.
TELL_HOLDER: Final[LiteralString] = """CASE
        WHEN stored."lockUuid" IS NOT NULL AND pg_notification_queue_usage() < 0.5
        THEN pg_notify('delayed_queue_leases', stored."lockUuid")::text
    END"""

_CREATED_AT: Final[LiteralString] = 'EXCLUDED."createdAt"'
_DUE_AT: Final[LiteralString] = 'EXCLUDED."scheduledAtInitially"'


def replace(
    due_at: LiteralString = _DUE_AT, created_at: LiteralString = _CREATED_AT
) -> LiteralString:
    """Return the clause that replaces the message under the key of an offer.

    The lease ends, attempts and errors start again (Q4). TELL_HOLDER is NULL or an empty text.
    """
    return f"""
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = {due_at},
    "scheduledAtInitially" = {due_at},
    "createdAt" = {created_at},
    headers = EXCLUDED.headers,
    "group" = EXCLUDED."group",
    "expiresAt" = EXCLUDED."expiresAt",
    "lockUuid" = NULLIF({TELL_HOLDER}, ''),
    "dueAt" = NULL,
    attempts = 0,
    "firstError" = NULL,
    "lastError" = NULL,
    "versionAt" = {created_at}"""


def if_changed(due_at: LiteralString = _DUE_AT) -> LiteralString:
    """Return the condition of an update: another payload, first schedule or expiry (Q3, Q37)."""
    return f"""
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> {due_at}
    OR EXCLUDED."expiresAt" IS DISTINCT FROM
        CASE WHEN stored."versionAt" <> stored."createdAt" THEN NULL ELSE stored."expiresAt" END
"""


REPLACE: Final[LiteralString] = replace()
IF_CHANGED: Final[LiteralString] = if_changed()

# The start of a debounced message's window: its first offer, until it was delivered or written by
# another service (Q38).
WINDOW_START: Final[LiteralString] = f"""CASE
        WHEN stored."lockUuid" IS NULL AND stored.attempts = 0
            AND stored."versionAt" = stored."createdAt"
        THEN stored."createdAt"
        ELSE {_CREATED_AT}
    END"""


# The batch, locked until the commit, so that neither close() nor a finish passes the producer. A
# member (with its lease) may add others to a closed batch; its own row cannot leave meanwhile.
JOINED: Final[LiteralString] = """member AS MATERIALIZED (
    SELECT id
    FROM delayed_queue
    WHERE id = %(message_id)s::bigint
        AND "lockUuid" = %(lease_id)s::text
        AND "batchId" = %(batch_id)s::bigint
    FOR KEY SHARE
),
joined AS MATERIALIZED (
    SELECT id AS batch
    FROM delayed_queue_batch
    WHERE id = %(batch_id)s::bigint
        AND (
            %(is_inside)s::boolean
            OR CASE
                WHEN %(message_id)s::bigint IS NULL THEN "closedAt" IS NULL
                ELSE EXISTS (SELECT 1 FROM member)
            END
        )
    FOR KEY SHARE
)"""


def offer_again(first_schedule: LiteralString) -> LiteralString:
    """Return a CTE that offers the newest letters as first attempts, due now; add conditions.

    A letter of a group keeps its old position, before messages that it may have held up. It is due
    after its first schedule, like a message that was begun.
    """
    return f"""
offered AS (
    INSERT INTO delayed_queue AS stored (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt", "group", "batchId"
    )
    SELECT
        "pKey", "pKind", payload,
        CASE WHEN "group" IS NULL THEN now ELSE LEAST(now, "scheduledAtInitially" + 1) END,
        CASE WHEN "group" IS NULL THEN {first_schedule} ELSE "scheduledAtInitially" END,
        now, headers, now, "group", "batchId"
    FROM newest
    CROSS JOIN clock"""
