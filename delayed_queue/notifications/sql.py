"""Every statement that moves a notification on: each names the states it leads out of."""

from __future__ import annotations

from typing import Final, LiteralString

# A delivery for each of ``held`` that was begun by somebody who never wrote how it ended:
# the provider may have seen it.
INTERRUPTED: Final[LiteralString] = """
interrupted AS (
    INSERT INTO delayed_queue_notification_delivery (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail
    )
    SELECT id, attempts, '', '', 'unfinished', '', ''
    FROM held
    WHERE was_interrupted
)"""

# What tells a row of the templates, as ``t``, from any other that there ever was, and from itself
# before any UPDATE, also one by hand: by the transaction that wrote it and where it lies. A
# VACUUM FULL changes it too, and then the template is read once more. Ids alone begin anew in
# another database, such as one that was restored.
STAMP: Final[LiteralString] = """
    concat_ws(' ', t.id, t.xmin, t.ctid, extract(epoch FROM t.created_at))"""


# Begin notifications, for the leases of their messages. A row comes back for each that is
# still open, PROCESSING under its lease, with what is to become of it: sent, or ended as expired
# or suppressed, which the caller settles at once. One whose former dispatcher never wrote how it
# ended (another lease) is taken over, and a delivery tells so. Twice under one lease changes
# nothing, so that a lost answer can be asked for again.
# "provider" is the one that is about to be called; it comes back as it is, unless the last call
# may have been accepted ("in doubt"): then as the one that was called.
# Only for whoever holds the message now: one that was stopped or cut off for longer than its lease
# must not take over from the one that has the message since, and end what that one is sending.
# Rows are locked in the order of their ids: batches that overlap wait, and never for each other.
# Expiry is by the clock, not the statement's start: the wait for a lock counts.
# Who holds a message is asked once for each, before notifications are looked for, and the kind
# behind COALESCE: planned while the queue was empty, its index leads to all messages of the kind.
# Reads: the primary key, notification_suppression, delayed_queue__PKeyPlusKindUniqueIndex.
BEGIN: Final[LiteralString] = (
    """
WITH asked AS MATERIALIZED (
    SELECT id, lease_id, provider
    FROM unnest(%(ids)s::uuid[], %(kinds)s::text[], %(leases)s::uuid[], %(providers)s::text[])
        AS given (id, kind, lease_id, provider)
    WHERE lease_id::text = (
        SELECT m."lockUuid"
        FROM delayed_queue AS m
        WHERE m."pKey" = given.id::text
            AND COALESCE(m."pKind" = given.kind, false)
    )
),
held AS MATERIALIZED (
    SELECT
        n.id,
        asked.lease_id,
        asked.provider,
        n.attempts,
        n.outcome = 'in doubt' OR (n.status = 'PROCESSING' AND n.lease_id <> asked.lease_id)
            AS in_doubt,
        n.lease_id IS DISTINCT FROM asked.lease_id AS is_new,
        n.status = 'PROCESSING' AND n.lease_id <> asked.lease_id AS was_interrupted,
        CASE
            WHEN n.expires_at <= clock_timestamp() THEN 'EXPIRED'
            WHEN EXISTS (
                SELECT 1
                FROM delayed_queue_notification_suppression AS s
                WHERE s.channel = n.channel
                    AND s.recipient_hash = n.recipient_hash
                    AND s.category IN ('', n.category)
            ) THEN 'CANCELLED'
            ELSE 'PROCESSING'
        END AS verdict
    FROM delayed_queue_notification AS n
    JOIN asked ON asked.id = n.id
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
    ORDER BY n.id
    FOR UPDATE OF n
),"""
    + INTERRUPTED
    + """
UPDATE delayed_queue_notification AS n
SET
    status = 'PROCESSING',
    lease_id = held.lease_id,
    attempts = n.attempts + CASE WHEN is_new AND verdict = 'PROCESSING' THEN 1 ELSE 0 END,
    started_at = CASE WHEN is_new THEN clock_timestamp() ELSE n.started_at END,
    provider = CASE WHEN is_new AND NOT in_doubt THEN held.provider ELSE n.provider END
FROM held
WHERE n.id = held.id
RETURNING
    n.id, n.lease_id, n.tenant, n.channel, n.priority, n.category, n.recipient,
    n.recipient_hash, n.subject, n.body, n.html, n.expires_at, n.callback_url, n.attempts,
    held.was_interrupted, n.provider, held.in_doubt, held.verdict
"""
)

# Note which provider is called next, before it is: after a crash it is the one that may have the
# message. Fenced like SETTLE; no row comes back when the lease was lost, and then none may be.
# Reads: the primary key.
TURN_TO: Final[LiteralString] = """
UPDATE delayed_queue_notification
SET provider = %(provider)s
WHERE id = %(id)s
    AND status = 'PROCESSING'
    AND lease_id = %(lease_id)s
RETURNING id
"""

# Write how attempts ended, with a delivery for each call of a provider. Fenced: only while the
# notification is PROCESSING under that lease. The deliveries are written all the same, because
# the provider has seen them; once, for a statement whose answer was lost is sent again, and an
# attempt calls no provider twice. What would be tried again after its expiry is EXPIRED at once.
# Rows are locked in the order of their ids, as above.
# Reads: the primary key, the index of deliveries by notification.
SETTLE: Final[LiteralString] = """
WITH settled AS (
    SELECT id, lease_id, status, delay, provider, provider_id, outcome, error_class
    FROM unnest(
        %(ids)s::uuid[], %(leases)s::uuid[], %(statuses)s::text[], %(delays)s::interval[],
        %(providers)s::text[], %(provider_ids)s::text[], %(outcomes)s::text[],
        %(error_classes)s::text[]
    ) AS settled (
        id, lease_id, status, delay, provider, provider_id, outcome, error_class
    )
),
held AS MATERIALIZED (
    SELECT
        n.id,
        CASE
            WHEN settled.status = 'ENQUEUED'
                AND n.expires_at <= clock_timestamp() + settled.delay THEN 'EXPIRED'
            ELSE settled.status
        END AS status,
        settled.provider,
        settled.provider_id,
        CASE
            WHEN settled.status = 'ENQUEUED'
                AND settled.outcome = ''
                AND n.expires_at <= clock_timestamp() + settled.delay THEN 'expired'
            ELSE settled.outcome
        END AS outcome,
        settled.error_class
    FROM delayed_queue_notification AS n
    JOIN settled ON settled.id = n.id AND settled.lease_id = n.lease_id
    WHERE n.status = 'PROCESSING'
    ORDER BY n.id
    FOR UPDATE OF n
),
recorded AS (
    INSERT INTO delayed_queue_notification_delivery (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
    )
    SELECT
        notification_id, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
    FROM unnest(
        %(call_ids)s::uuid[], %(call_attempts)s::int[], %(call_providers)s::text[],
        %(call_provider_ids)s::text[], %(call_outcomes)s::text[], %(call_error_classes)s::text[],
        %(call_details)s::text[], %(call_durations)s::int[]
    ) AS call (
        notification_id, attempt, provider, provider_id, outcome, error_class, detail, duration_ms
    )
    WHERE (
            SELECT TRUE
            FROM delayed_queue_notification_delivery AS d
            WHERE d.notification_id = call.notification_id
                AND d.attempt = call.attempt
                AND d.provider = call.provider
            LIMIT 1
        ) IS NULL
)
UPDATE delayed_queue_notification AS n
SET
    status = held.status,
    lease_id = NULL,
    provider = held.provider,
    provider_id = held.provider_id,
    outcome = held.outcome,
    error_class = held.error_class,
    ended_at = CASE WHEN held.status <> 'ENQUEUED' THEN clock_timestamp() END
FROM held
WHERE n.id = held.id
RETURNING n.id, n.status
"""

# Cancel what waits; what is PROCESSING may be at the provider already, and is left. What waits to
# be asked for again may have been sent by the first call, and goes on saying so.
# Reads: the primary key.
CANCEL: Final[LiteralString] = """
UPDATE delayed_queue_notification
SET
    status = 'CANCELLED',
    ended_at = clock_timestamp(),
    outcome = %(reason)s || CASE WHEN outcome = 'in doubt' THEN ', in doubt' ELSE '' END
WHERE id = %(id)s::uuid
    AND status = 'ENQUEUED'
RETURNING priority, channel, callback_url
"""

# Let what failed be tried again, unless it would come too late; and what may have been sent only
# for whoever says so. Reads: the primary key.
RETRY: Final[LiteralString] = """
UPDATE delayed_queue_notification
SET status = 'ENQUEUED', ended_at = NULL, outcome = '', error_class = ''
WHERE id = %(id)s::uuid
    AND status = 'FAILED'
    AND (expires_at IS NULL OR expires_at > clock_timestamp())
    AND (%(even_in_doubt)s::boolean OR right(outcome, 8) <> 'in doubt')
RETURNING priority, channel
"""

# Take the dedupe keys that are free, or whose window is over, for these notifications; the rows
# that come back were taken. Waits for another transaction that takes the same key, so of two at
# once exactly one wins. The caller sorts the keys, so that two batches never wait for each other,
# and names each only once. Reads: notification_dedupe.
CLAIM_KEYS: Final[LiteralString] = """
INSERT INTO delayed_queue_notification_dedupe AS held (tenant, key, notification_id, until)
SELECT %(tenant)s::text, key, id, statement_timestamp() + %(window)s::interval
FROM unnest(%(keys)s::text[], %(ids)s::uuid[]) AS asked (key, id)
ON CONFLICT (tenant, key) DO UPDATE
SET notification_id = EXCLUDED.notification_id, until = EXCLUDED.until
WHERE held.until <= statement_timestamp()
RETURNING key
"""

# The notifications that hold those keys. Reads: notification_dedupe, the primary key.
HOLDERS: Final[LiteralString] = """
SELECT held.key, n.id, n.status
FROM delayed_queue_notification_dedupe AS held
JOIN delayed_queue_notification AS n ON n.id = held.notification_id
WHERE held.tenant = %(tenant)s
    AND held.key = ANY (%(keys)s::text[])
"""

# Store accepted requests in their order, but those whose key belongs to another notification; those
# for suppressed recipients end at once. It is sent right behind CLAIM_KEYS, whose answer is not
# there yet: whose a key is, this reads itself, in a snapshot that has what that statement wrote.
# Asked of each request, for what was never analyzed the planner would read from end to end.
# Reads: notification_suppression, notification_dedupe.
INSERT: Final[LiteralString] = """
INSERT INTO delayed_queue_notification (
    id, tenant, source, channel, priority, category, recipient, recipient_hash, template,
    template_version, subject, body, html, send_at, expires_at, dedupe_key, callback_url, status,
    outcome, ended_at, attempts, provider, provider_id, error_class
)
SELECT
    id, %(tenant)s::text, %(source)s::text, channel, priority, category, recipient, recipient_hash,
    template, template_version, subject, body, html, COALESCE(send_at, statement_timestamp()),
    expires_at, dedupe_key, callback_url,
    CASE WHEN is_suppressed THEN 'CANCELLED' ELSE 'ENQUEUED' END,
    CASE WHEN is_suppressed THEN 'suppressed' ELSE '' END,
    CASE WHEN is_suppressed THEN statement_timestamp() END,
    0, '', '', ''
FROM unnest(
    %(ids)s::uuid[], %(channels)s::text[], %(priorities)s::text[], %(categories)s::text[],
    %(recipients)s::text[], %(recipient_hashes)s::bytea[], %(templates)s::text[],
    %(template_versions)s::int[], %(subjects)s::text[], %(bodies)s::text[], %(htmls)s::text[],
    %(send_ats)s::timestamptz[], %(expires_ats)s::timestamptz[], %(dedupe_keys)s::text[],
    %(callback_urls)s::text[], %(claims)s::text[]
) WITH ORDINALITY AS request (
    id, channel, priority, category, recipient, recipient_hash, template, template_version,
    subject, body, html, send_at, expires_at, dedupe_key, callback_url, claim, place
)
CROSS JOIN LATERAL (
    SELECT EXISTS (
        SELECT 1
        FROM delayed_queue_notification_suppression AS s
        WHERE s.channel = request.channel
            AND s.recipient_hash = request.recipient_hash
            AND s.category IN ('', request.category)
    ) AS is_suppressed
) AS suppression
WHERE claim = ''
    OR (
        SELECT held.notification_id
        FROM delayed_queue_notification_dedupe AS held
        WHERE held.tenant = %(tenant)s::text
            AND held.key = claim
    ) = id
ORDER BY place
RETURNING id, status
"""

# A version of a template, the last one without a number, and its stamp.
# Reads: notification_template_version.
FIND_TEMPLATE: Final[LiteralString] = (
    """
SELECT
    t.name, t.channel, t.version, t.category, t.subject, t.body, t.html,"""
    + STAMP
    + """
FROM delayed_queue_notification_template AS t
WHERE t.name = %(name)s::text
    AND t.channel = %(channel)s::text
    AND t.version <= COALESCE(%(version)s::int, 2147483647)
    AND t.version >= COALESCE(%(version)s::int, 0)
ORDER BY t.version DESC
LIMIT 1
"""
)

# How many templates are not, or no longer, what FIND_TEMPLATE would answer.
# Reads: notification_template_version.
STALE_TEMPLATES: Final[LiteralString] = (
    """
SELECT count(*)
FROM unnest(
    %(names)s::text[], %(channels)s::text[], %(versions)s::int[], %(stamps)s::text[]
) AS known (name, channel, version, stamp)
WHERE known.stamp IS DISTINCT FROM (
        SELECT"""
    + STAMP
    + """
        FROM delayed_queue_notification_template AS t
        WHERE t.name = known.name
            AND t.channel = known.channel
            AND t.version <= COALESCE(known.version, 2147483647)
            AND t.version >= COALESCE(known.version, 0)
        ORDER BY t.version DESC
        LIMIT 1
    )
"""
)

# Keep broker's messages that are no valid requests; one that is kept already is counted.
# Reads: notification_parked_digest.
PARK: Final[LiteralString] = """
INSERT INTO delayed_queue_notification_parked AS parked (
    digest, origin, tenant, message_id, content_type, body, reason, errors, times
)
SELECT digest, %(origin)s, %(tenant)s, message_id, content_type, body, reason, errors, times
FROM unnest(
    %(digests)s::bytea[], %(message_ids)s::text[], %(content_types)s::text[],
    %(bodies)s::bytea[], %(reasons)s::text[], %(errors)s::jsonb[], %(times)s::int[]
) AS refused (digest, message_id, content_type, body, reason, errors, times)
ON CONFLICT (digest) DO UPDATE
SET
    times = parked.times + EXCLUDED.times,
    parked_at = statement_timestamp(),
    reason = EXCLUDED.reason,
    errors = EXCLUDED.errors
"""


# Mark a bounded number of waiting notifications whose time is over, so that lists tell the truth
# before a dispatcher comes to them; the queue's messages then find nothing to do. What another
# transaction holds is being sent, cancelled or expired. Reads: notification_expires.
EXPIRE: Final[LiteralString] = """
UPDATE delayed_queue_notification
SET
    status = 'EXPIRED',
    ended_at = clock_timestamp(),
    outcome = CASE WHEN outcome = 'in doubt' THEN 'expired, in doubt' ELSE 'expired' END
WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_notification
        WHERE status = 'ENQUEUED'
            AND expires_at <= statement_timestamp()
        ORDER BY expires_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
RETURNING id, status, callback_url
"""

# Fail what is still open though its message became a dead letter: of a handler that killed its
# process each time, nobody else writes the end. One that was PROCESSING may have been sent, and a
# delivery tells so. Looks at the newest letters of one queue only, and locks in the order of ids.
# Whether its message lives is asked of each letter: NOT EXISTS may be a join with all messages. The
# kind is compared behind COALESCE, as in BEGIN.
# Reads: dead_letter_kind_died, the primary key, delayed_queue__PKeyPlusKindUniqueIndex.
FAIL_DEAD: Final[LiteralString] = (
    """
WITH letter AS MATERIALIZED (
    SELECT "pKey", reason
    FROM delayed_queue_dead_letter
    WHERE "pKind" = %(kind)s
        AND "pKey" ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
    ORDER BY "diedAt" DESC, id DESC
    LIMIT %(limit)s
),
held AS MATERIALIZED (
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted, letter.reason
    FROM delayed_queue_notification AS n
    JOIN letter ON n.id = letter."pKey"::uuid
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
        AND (
            SELECT TRUE
            FROM delayed_queue AS m
            WHERE m."pKey" = letter."pKey"
                AND COALESCE(m."pKind" = %(kind)s, false)
        ) IS NULL
    ORDER BY n.id
    FOR UPDATE OF n
),"""
    + INTERRUPTED
    + """
UPDATE delayed_queue_notification AS n
SET
    status = 'FAILED',
    lease_id = NULL,
    ended_at = clock_timestamp(),
    outcome = 'given up: ' || held.reason
        || CASE
            WHEN held.was_interrupted OR n.outcome = 'in doubt' THEN ', in doubt'
            ELSE ''
        END
FROM held
WHERE n.id = held.id
RETURNING n.id, n.status, n.callback_url
"""
)

# Of the next open notifications in one state those that have no message, so that no dispatcher will
# ever come to them: somebody dropped it on the page of its queue, or it was one of more dead
# letters than FAIL_DEAD looks at. Locks nothing, so what it finds is only suspected. A row for each
# that was looked at, to go on from the last. Whether there is a message is asked of each, as above.
# Reads: notification_status_id, delayed_queue__PKeyPlusKindUniqueIndex.
WITHOUT_MESSAGE: Final[LiteralString] = """
SELECT
    waiting.id,
    (
        SELECT TRUE
        FROM delayed_queue AS m
        WHERE m."pKey" = waiting.id::text
            AND COALESCE(
                m."pKind"
                    = 'notifications-' || waiting.priority || '-' || waiting.channel || '|json',
                false
            )
    ) IS NULL AS is_lost
FROM (
    SELECT id, priority, channel
    FROM delayed_queue_notification
    WHERE (status, id) > (%(status)s, %(after)s::uuid)
        AND status <= %(status)s
    ORDER BY status, id
    LIMIT %(limit)s
) AS waiting
ORDER BY waiting.id
"""

# Fail those of them that still have no message, looked at anew: by now one may have been retried.
# One that was PROCESSING may have been sent, and a delivery tells so. Locks in the order of ids.
# Joined rather than "id = ANY": with that, PostgreSQL 15 reads all that are open to find those few.
# Reads: the primary key, delayed_queue__PKeyPlusKindUniqueIndex.
FAIL_LOST: Final[LiteralString] = (
    """
WITH held AS MATERIALIZED (
    SELECT n.id, n.attempts, n.status = 'PROCESSING' AS was_interrupted
    FROM unnest(%(ids)s::uuid[]) AS lost (id)
    JOIN delayed_queue_notification AS n ON n.id = lost.id
    WHERE n.status IN ('ENQUEUED', 'PROCESSING')
        AND (
            SELECT TRUE
            FROM delayed_queue AS m
            WHERE m."pKey" = n.id::text
                AND COALESCE(
                    m."pKind" = 'notifications-' || n.priority || '-' || n.channel || '|json',
                    false
                )
        ) IS NULL
    ORDER BY n.id
    FOR UPDATE OF n
),"""
    + INTERRUPTED
    + """
UPDATE delayed_queue_notification AS n
SET
    status = 'FAILED',
    lease_id = NULL,
    ended_at = clock_timestamp(),
    outcome = 'its message is gone'
        || CASE
            WHEN held.was_interrupted OR n.outcome = 'in doubt' THEN ', in doubt'
            ELSE ''
        END
FROM held
WHERE n.id = held.id
RETURNING n.id, n.status, n.callback_url
"""
)
