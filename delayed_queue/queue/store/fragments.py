"""What several statements of the queue have in common."""

from __future__ import annotations

import re
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

# A new life under the old key: the lease ends, attempts and errors start anew (Q4).
REPLACE: Final[LiteralString] = """
ON CONFLICT ("pKey", "pKind") DO UPDATE
SET payload = EXCLUDED.payload,
    "scheduledAt" = EXCLUDED."scheduledAt",
    "scheduledAtInitially" = EXCLUDED."scheduledAtInitially",
    "createdAt" = EXCLUDED."createdAt",
    headers = EXCLUDED.headers,
    "lockUuid" = NULL,
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

# The topic of a kind, as topics.kinds reads it; NULL for a kind that is none of a topic.
TOPIC: Final[LiteralString] = (
    """substring("pKind" FROM '^([^#|]+)(?:#[0-9]+)?[|](?:json|callback)$')"""
)

# Messages made of the newest letters, due now, as first attempts; behind it stands which letters
# are left out. They are said to be first due now, as everything of their new life. But who
# received a callback knows it by its first schedule, and must know it again.
OFFERED_AGAIN: Final[LiteralString] = """
offered AS (
    INSERT INTO delayed_queue (
        "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
        "versionAt"
    )
    SELECT
        "pKey",
        "pKind",
        payload,
        now,
        CASE WHEN right("pKind", 9) = '|callback' THEN "scheduledAtInitially" ELSE now END,
        now,
        headers,
        now
    FROM newest
    CROSS JOIN clock"""

# The kinds of topics, as TOPIC reads them.
_KIND: Final = re.compile(r"([^#|]+)(?:#[0-9]+)?\|(?:json|callback)", re.ASCII)


def topic_of(kind: str) -> str | None:
    """Return the topic that a kind is one of, if there is a topic of that name."""
    match = _KIND.fullmatch(kind)
    return None if match is None else match[1]
