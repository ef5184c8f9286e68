"""The statements about API tokens."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import execute, fetch

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
        rows = fetch(using, sql.FIND_TOKEN, params)
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
        return execute(using, sql.USE_TOKEN, params) > 0
