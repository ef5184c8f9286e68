"""The statements of the dead letters, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.managers.locks import MOST_JOBS, locking_letters, topic_of
from delayed_queue.statements import execute, fetch, fetch_all

M = TypeVar("M", bound=models.Model)
_BITE: Final = 1000


class RedrivenRow(NamedTuple):
    """A dead letter: created or updated in its queue, or (None) still dead."""

    id: int
    created: bool | None
    kind: str


class ListedRow(NamedTuple):
    """A dead letter, and whether it is the newest of its key among those that were asked for."""

    id: int
    is_newest: bool


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
        """Offer those letters again; the ones not returned do not exist, or are locked.

        Under the locks of the jobs they belong to, in one round trip.
        """
        params = {"ids": list(ids), "overwrite": overwrite, "kind": kind, "now": now}
        steps = [*locking_letters(ids, kind), (sql.REDRIVE, params)]
        return list(map(RedrivenRow._make, fetch_all(using, steps)[-1]))

    def count_of(
        self, ids: Sequence[int], *, kind: str | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> int:
        """Return how many of those letters there are, of the kind if one is given."""
        found: int = fetch(using, sql.COUNT_LETTERS, {"ids": list(ids), "kind": kind})[0][0]
        return found

    def bite(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Return how many letters of the kind to redrive at a time.

        Of a topic's no more than it holds jobs: with more it would keep all others waiting.
        """
        topic = topic_of(kind)
        is_topic = topic is not None and fetch(using, sql.READ_TOPIC, {"topic": topic})
        return MOST_JOBS if is_topic else _BITE

    def hold_jobs(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Hold the jobs of the letters until the end of the transaction.

        For who locks the letters before ``redrive``: who deletes a job locks it, then its letters.
        """
        fetch_all(using, locking_letters(ids, None))

    def next_letters(
        self,
        kind: str,
        *,
        after: int = 0,
        reason: str | None = None,
        limit: int = 1000,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[ListedRow]:
        """Return the next letters in id order whose reason starts with the given text."""
        params = {"kind": kind, "after": after, "reason": reason, "limit": limit}
        return list(map(ListedRow._make, fetch(using, sql.DEAD_LETTER_IDS, params)))

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
