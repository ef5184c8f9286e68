"""Statements that list, count and prune notifications: each reads a bounded number of rows."""

from __future__ import annotations

from typing import Final, LiteralString

# The newest notifications of a tenant in some states, older than a given id. One look at the index
# for each state, each of at most a page. Rows are compared, not columns one by one: to a state
# that is given with "=" the planner owes no order, and it may walk the primary key from end to end
# in search of a rare one. Reads: notification_tenant.
PAGE_OF_TENANT: Final[LiteralString] = """
SELECT id
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT n.id
    FROM notifications_notification AS n
    WHERE (n.tenant, n.status, n.id) < (%(tenant)s, wanted.status, %(before)s::uuid)
        AND (n.tenant, n.status) >= (%(tenant)s, wanted.status)
    ORDER BY n.tenant DESC, n.status DESC, n.id DESC
    LIMIT %(limit)s
) AS newest
ORDER BY id DESC
LIMIT %(limit)s
"""

# The same, of all tenants. Reads: notification_status_id.
PAGE: Final[LiteralString] = """
SELECT id
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT n.id
    FROM notifications_notification AS n
    WHERE (n.status, n.id) < (wanted.status, %(before)s::uuid)
        AND n.status >= wanted.status
    ORDER BY n.status DESC, n.id DESC
    LIMIT %(limit)s
) AS newest
ORDER BY id DESC
LIMIT %(limit)s
"""

# The newest notifications of one recipient, older than a given id; as above, the order keeps the
# primary key out of it. Reads: notification_recipient.
PAGE_OF_RECIPIENT: Final[LiteralString] = """
SELECT id
FROM notifications_notification
WHERE (recipient_hash, id) < (%(recipient_hash)s, %(before)s::uuid)
    AND recipient_hash >= %(recipient_hash)s
ORDER BY recipient_hash DESC, id DESC
LIMIT %(limit)s
"""

# How many there are in each state, counted no further than a cap. Reads: notification_status_id.
STATES: Final[LiteralString] = """
SELECT wanted.status, counted.found
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT count(*) AS found
    FROM (
        SELECT 1
        FROM notifications_notification AS n
        WHERE (n.status, n.id) >= (wanted.status, '00000000-0000-0000-0000-000000000000'::uuid)
            AND n.status <= wanted.status
        ORDER BY n.status, n.id
        LIMIT %(cap)s
    ) AS few
) AS counted
"""

# How many were accepted since a moment, by the time in their ids, counted no further than a cap;
# and the first id among those counted, from which a rate can be told when the cap was reached.
# Reads: the primary key.
ACCEPTED: Final[LiteralString] = """
SELECT count(*), min(id::text)
FROM (
    SELECT id
    FROM notifications_notification
    WHERE id >= %(since)s::uuid
    ORDER BY id DESC
    LIMIT %(cap)s
) AS latest
"""

# What providers did lately: of the newest calls, at most a cap, those since a moment, by provider;
# with the seconds they span, and the last failure. Reads: notification_delivery_at.
PROVIDERS: Final[LiteralString] = """
WITH latest AS MATERIALIZED (
    SELECT id, at, provider, outcome, error_class, duration_ms
    FROM notifications_delivery
    WHERE at >= statement_timestamp() - %(period)s::interval
    ORDER BY at DESC, id DESC
    LIMIT %(cap)s
)
SELECT
    provider,
    count(*) FILTER (WHERE outcome = 'sent') AS sent,
    count(*) FILTER (WHERE outcome = 'refused') AS refused,
    count(*) FILTER (WHERE outcome = 'failed') AS failed,
    count(*) FILTER (WHERE outcome IN ('ambiguous', 'unfinished')) AS doubtful,
    count(*) FILTER (
        WHERE outcome = 'sent' AND at >= statement_timestamp() - INTERVAL '1 minute'
    ) AS sent_lately,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY duration_ms) AS median_ms,
    percentile_disc(0.95) WITHIN GROUP (ORDER BY duration_ms) AS slow_ms,
    max(at) FILTER (WHERE outcome <> 'sent') AS last_failure_at,
    COALESCE((array_agg(error_class ORDER BY id DESC) FILTER (WHERE outcome <> 'sent'))[1], '')
        AS last_error,
    (SELECT count(*) FROM latest) AS counted,
    (SELECT EXTRACT(EPOCH FROM statement_timestamp() - min(at)) FROM latest) AS span
FROM latest
GROUP BY provider
ORDER BY provider
"""

# Delete a bounded number of notifications that ended before a moment and were made before it, with
# their deliveries; in the order of their ids, so that a prune of a year goes on where it was.
# Open ones are passed over, however old. Reads: the primary key, the index of deliveries by
# notification.
PRUNE: Final[LiteralString] = """
WITH old AS MATERIALIZED (
    SELECT id
    FROM notifications_notification
    WHERE id < %(before)s::uuid
        AND id > %(after)s::uuid
    ORDER BY id
    LIMIT %(limit)s
),
gone AS (
    DELETE FROM notifications_notification AS n
    USING old
    WHERE n.id = old.id
        AND n.ended_at < %(ended_before)s
    RETURNING n.id
),
forgotten AS (
    DELETE FROM notifications_delivery AS d
    USING gone
    WHERE d.notification_id = gone.id
)
SELECT (SELECT count(*) FROM gone), (SELECT max(id::text) FROM old)
"""

# Delete a bounded number of dedupe keys whose window is over. Reads: notification_dedupe_until.
PRUNE_KEYS: Final[LiteralString] = """
DELETE FROM notifications_dedupeclaim
WHERE id = ANY (ARRAY(
        SELECT id
        FROM notifications_dedupeclaim
        WHERE until <= statement_timestamp()
        ORDER BY until
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""

# Delete a bounded number of parked requests that were parked before a moment.
# Reads: notification_parked_at.
PRUNE_PARKED: Final[LiteralString] = """
DELETE FROM notifications_parkedrequest
WHERE id = ANY (ARRAY(
        SELECT id
        FROM notifications_parkedrequest
        WHERE parked_at < %(before)s
        ORDER BY parked_at, id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""
