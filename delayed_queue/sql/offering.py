"""Putting messages in, one by one and in batches."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK, IF_CHANGED, REPLACE

# Put or update one message. CREATED is a row whose xmax is 0, UPDATED one with an xmax (ON
# CONFLICT locks the old version first, and its successor carries that lock); no row is IGNORED:
# same payload bytes and same first schedule (Q2, Q3). One statement, so a re-offer that races
# an acknowledgement is either before it or after it, and never loops (Q7).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_OR_UPDATE: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue AS stored (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
    "versionAt"
)
SELECT
    %(key)s,
    %(kind)s,
    %(payload)s::bytea,
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    now,
    %(headers)s::jsonb,
    now
FROM clock"""
    + REPLACE
    + IF_CHANGED
    + """
RETURNING xmax = 0 AS created
"""
)

# Put one message unless its key exists; a returned row is CREATED, none is IGNORED (Q1).
# DO NOTHING waits for a transaction that is deleting the key, so after it there is room (Q7).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_IF_NOT_EXISTS: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
    "versionAt"
)
SELECT
    %(key)s,
    %(kind)s,
    %(payload)s::bytea,
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    COALESCE(%(schedule_at)s::bigint, now + %(delay)s::bigint),
    now,
    %(headers)s::jsonb,
    now
FROM clock
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING true AS created
"""
)

# Ids are drawn in input order (inner query), rows are inserted, and so locked, in key order
# (outer query): equal schedules are delivered as they were offered (Q15), and two batches with
# the same keys in opposite order cannot deadlock. Keys must be distinct within one statement.
_BATCH_SOURCE: Final[LiteralString] = """
INSERT INTO delayed_queue AS stored (
    id, "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", headers,
    "versionAt"
)
SELECT id, key, %(kind)s, payload, due_at, due_at, created_at, headers, created_at
FROM (
    SELECT
        nextval('delayed_queue_id_seq') AS id,
        offered.key,
        offered.payload,
        COALESCE(offered.schedule_at, (SELECT now FROM clock)) AS due_at,
        (SELECT now FROM clock) AS created_at,
        offered.headers
    FROM unnest(
        %(keys)b::text[], %(payloads)b::bytea[], %(schedules)b::bigint[], %(headers)s::jsonb[]
    ) AS offered (key, payload, schedule_at, headers)
) AS numbered
ORDER BY key COLLATE "C"
"""

# OFFER_OR_UPDATE for a chunk; keys without a returned row are IGNORED. A key that another
# transaction inserts meanwhile is waited for and costs only itself (Q13).
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_BATCH_OR_UPDATE: Final[LiteralString] = (
    CLOCK
    + _BATCH_SOURCE
    + REPLACE
    + IF_CHANGED
    + """
RETURNING "pKey", xmax = 0 AS created
"""
)

# OFFER_IF_NOT_EXISTS for a chunk.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
OFFER_BATCH_IF_NOT_EXISTS: Final[LiteralString] = (
    CLOCK
    + _BATCH_SOURCE
    + """
ON CONFLICT ("pKey", "pKind") DO NOTHING
RETURNING "pKey", true AS created
"""
)

# Wake those who listen on the channel, when the transaction commits.
NOTIFY: Final[LiteralString] = "SELECT pg_notify(%(channel)s, '')"
