"""The statements of DeadLetterManager, over an in-memory store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.models import DeadLetter
from delayed_queue.queue.store.dead_letters import DeadLetterManager, ListedRow, RedrivenRow
from delayed_queue.queue.store.fragments import topic_of
from delayed_queue.testing.stores import InMemoryStore, Letter, Row, instant

if TYPE_CHECKING:
    _Letters = DeadLetterManager[DeadLetter]  # for its signatures, as in messages.py
else:
    _Letters = object


class InMemoryLetters(_Letters):
    """The statements of DeadLetterManager."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def redrive(
        self,
        ids: Sequence[int],
        *,
        overwrite: bool = False,
        kind: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[RedrivenRow]:
        at = instant(now)
        with self._store.lock:
            found = [letter for letter in self._store.letters_of(kind) if letter.id in ids]
            newest = {_name(letter): letter for letter in found}
            elsewhere = {
                _name(row) for row in self._store.rows.values() if self._is_elsewhere(row, newest)
            }
            created = {
                newest[name].id: self._offer(newest[name], overwrite=overwrite, at=at)
                for name in sorted(newest)
                if name not in elsewhere
            }
        return [RedrivenRow(each.id, created.get(each.id), each.kind) for each in found]

    def _is_elsewhere(self, row: Row, newest: dict[tuple[str, str], Letter]) -> bool:
        letter = newest.get(_name(row))
        return letter is not None and letter.kind != row.kind

    def _offer(self, letter: Letter, *, overwrite: bool, at: int) -> bool | None:
        living = self._store.find(letter.kind, letter.key)
        if living is not None and not overwrite:
            return None
        row_id = self._store.new_id() if living is None else living.id
        # Who received a callback knows it by its first schedule.
        first = letter.scheduled_at_initially if letter.kind.endswith("|callback") else at
        self._store.put(
            Row(row_id, letter.kind, letter.key, letter.payload, at, first, at, letter.headers)
        )
        del self._store.letters[letter.id]
        return living is None

    def next_letters(
        self,
        kind: str,
        *,
        after: int = 0,
        reason: str | None = None,
        limit: int = 1000,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[ListedRow]:
        with self._store.lock:
            letters = self._store.letters_of(kind)
        wanted = [each for each in letters if each.reason.startswith(reason or "")]
        newest = {each.key: each.id for each in wanted}
        rows = [ListedRow(each.id, newest[each.key] == each.id) for each in wanted]
        return [row for row in rows if row.id > after][:limit]

    def bite(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        return 1000

    def hold_jobs(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Nothing: a transaction of the store holds all of it."""

    def prune(
        self,
        kind: str,
        age: int,
        *,
        limit: int = 1000,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> int:
        with self._store.lock:
            old = [
                (letter.died_at, letter.id)
                for letter in self._store.letters_of(kind)
                if letter.died_at < instant(now) - age
            ]
            return self.drop([letter_id for _, letter_id in sorted(old)[:limit]])

    def drop(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        with self._store.lock:
            found = [letter_id for letter_id in set(ids) if letter_id in self._store.letters]
            for letter_id in found:
                del self._store.letters[letter_id]
        return len(found)


def _name(row: Row | Letter) -> tuple[str, str]:
    """Return what is one: a key in its kind or, where that is a topic's, in all of the topic."""
    topic = topic_of(row.kind)
    return row.key, row.kind if topic is None else f"{topic}|"
