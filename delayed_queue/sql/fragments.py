"""What several statements have in common."""

from __future__ import annotations

from typing import Final, LiteralString

# Milliseconds since the epoch, floored; evaluated once per statement wherever it is used as
# an uncorrelated sub-select (PostgreSQL makes an InitPlan of it).
CLOCK: Final[LiteralString] = """
WITH clock AS MATERIALIZED (
    SELECT COALESCE(
        %(now)s::bigint,
        floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint
    ) AS now
)"""

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
    "lastError" = NULL"""

# Q3: a repeated offer is recognised by payload bytes and first schedule alone.
IF_CHANGED: Final[LiteralString] = """
WHERE stored.payload <> EXCLUDED.payload
    OR stored."scheduledAtInitially" <> EXCLUDED."scheduledAtInitially"
"""
