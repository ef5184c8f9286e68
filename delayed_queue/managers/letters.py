"""The statements of the dead letters, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import execute, fetch

M = TypeVar("M", bound=models.Model)


class RedrivenRow(NamedTuple):
    """A dead letter: created or updated in its queue, or (None) still dead."""

    id: int
    created: bool | None
    kind: str


class DeadLetterManager(models.Manager[M]):
    """The dead letters' statements, in the manner of MessageManager."""

    def redrive(
        self,
        ids: Sequence[int],
        *,
        overwrite: bool = False,
        kind: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[RedrivenRow]:
        """Offer those letters again; the ones not returned do not exist, or are locked."""
        params = {"ids": list(ids), "overwrite": overwrite, "kind": kind, "now": now}
        return list(map(RedrivenRow._make, fetch(using, sql.REDRIVE, params)))

    def next_ids(
        self,
        kind: str,
        *,
        after: int = 0,
        reason: str | None = None,
        limit: int = 1000,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[int]:
        """Return the next ids in order, of letters whose reason starts with the given text."""
        params = {"kind": kind, "after": after, "reason": reason, "limit": limit}
        return [row[0] for row in fetch(using, sql.DEAD_LETTER_IDS, params)]

    def kinds(self, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[str]:
        """Return the kinds that have dead letters, at most ``limit``, in the index's order."""
        return [row[0] for row in fetch(using, sql.DEAD_LETTER_KINDS, {"limit": limit})]

    def prune(
        self,
        kind: str,
        age: int,
        *,
        limit: int = 1000,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> int:
        """Delete up to ``limit`` letters that died longer ago than that; return how many."""
        params = {"kind": kind, "age": age, "limit": limit, "now": now}
        return execute(using, sql.PRUNE_DEAD_LETTERS, params)

    def drop(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        return execute(using, sql.DROP_DEAD_LETTERS, {"ids": list(ids)})
