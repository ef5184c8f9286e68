"""After an answer was lost: whether its try is over, and what it has left behind."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import HEADERS

# The clock, and whether a session that a try was sent over is still there. It goes by itself: at
# the end of its statement the server finds that nobody listens. A session that began after the
# loss is another one, which got the number of one that has ended.
# Reads: no table; the list of sessions.
LOST_SESSIONS: Final[LiteralString] = """
SELECT
    floor(extract(epoch FROM statement_timestamp()) * 1000)::bigint,
    EXISTS (
        SELECT 1
        FROM pg_stat_activity
        WHERE pid = ANY (%(pids)b::integer[])
            AND pid <> pg_backend_pid()
            AND backend_start < statement_timestamp() - make_interval(secs => %(seconds)s)
    )
"""

# What is stored under the keys of offers, a row for each in their order: whether it has just their
# content, its first schedule, its creation (NULL where nothing is), and the clock. The clock is
# read behind the snapshot: what is not there, and not due by that clock, nobody has handled.
# Reads: delayed_queue__PKeyPlusKindUniqueIndex.
STORED_OFFERS: Final[LiteralString] = (
    """
SELECT
    offered.key,
    COALESCE(
        stored.payload = offered.payload
        AND stored.headers IS NOT DISTINCT FROM offered.headers,
        false
    ),
    stored."scheduledAtInitially",
    stored."createdAt",
    COALESCE(%(now)s::bigint, floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)
FROM unnest(
    %(keys)b::text[], %(kinds)b::text[], %(payloads)b::bytea[], %(headers)s::jsonb[]
) WITH ORDINALITY AS offered (key, kind, payload, headers, place)
LEFT JOIN LATERAL (
    SELECT payload, """
    + HEADERS
    + """ AS headers, "scheduledAtInitially", "createdAt"
    FROM delayed_queue
    WHERE "pKey" = offered.key
        AND "pKind" = offered.kind
    OFFSET 0
) AS stored ON true
ORDER BY place
"""
)

# How many of those dead letters there are. Inside COALESCE no index serves the comparison, as in
# REDRIVE. Reads: the primary key of the dead letters.
COUNT_LETTERS: Final[LiteralString] = """
SELECT count(*)
FROM delayed_queue_dead_letter
WHERE id = ANY (%(ids)b::bigint[])
    AND COALESCE("pKind" = %(kind)s::text, true)
"""
