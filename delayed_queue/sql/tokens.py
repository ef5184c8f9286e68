"""The tokens of the HTTP API."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK

# A token in force: neither revoked nor expired, by the database's clock. Whether its last use
# was so long ago that it is to be written comes along, so that most requests write nothing.
# Reads: token_digest.
FIND_TOKEN: Final[LiteralString] = (
    CLOCK
    + """
SELECT
    id, name, digest, topics::text, verbs::text, rate, burst,
    COALESCE("lastUsedAt" <= (SELECT now FROM clock) - %(stale_after)s::bigint, TRUE)
FROM delayed_queue_token
WHERE digest = %(digest)s
    AND "disabledAt" IS NULL
    AND COALESCE("expiresAt" > (SELECT now FROM clock), TRUE)
"""
)

# Once per period whoever asks: of processes that come together the first one writes, and the
# others find nothing stale once they have its row. No index has the column, so the update is
# within the page (HOT).
# Reads: delayed_queue_token_pkey.
USE_TOKEN: Final[LiteralString] = (
    CLOCK
    + """
UPDATE delayed_queue_token
SET "lastUsedAt" = (SELECT now FROM clock)
WHERE id = %(id)s
    AND COALESCE("lastUsedAt" <= (SELECT now FROM clock) - %(stale_after)s::bigint, TRUE)
"""
)
