"""Bearer tokens: the statements, and the manager that runs them."""

from __future__ import annotations

import json
from typing import Any, Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK
from delayed_queue.db.statements import execute, fetch

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

# Write at most once a period: of processes that come together the first one writes, and the
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

M = TypeVar("M", bound=models.Model)


class TokenRow(NamedTuple):
    """A token in force."""

    id: int
    name: str
    digest: str
    topics: list[str]
    verbs: list[str]
    rate: float | None
    burst: int | None
    is_stale: bool


def _row(token_id: int, name: str, digest: str, topics: str, verbs: str, *rest: Any) -> TokenRow:
    return TokenRow(token_id, name, digest, json.loads(topics), json.loads(verbs), *rest)


class ApiTokenManager(models.Manager[M]):
    """The statements about API tokens, in the manner of MessageManager."""

    def find(
        self,
        digest: str,
        *,
        stale_after: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> TokenRow | None:
        """Return the token in force with that digest; ``is_stale`` when its use is to be noted."""
        params = {"digest": digest, "stale_after": stale_after, "now": now}
        rows = fetch(using, FIND_TOKEN, params)
        return _row(*rows[0]) if rows else None

    def mark_used(
        self,
        token_id: int,
        *,
        stale_after: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:
        """Note that the token was used, unless that was done so recently."""
        params = {"id": token_id, "stale_after": stale_after, "now": now}
        return execute(using, USE_TOKEN, params) > 0
