"""Dead letters of an in-memory queue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from delayed_queue.models import DeadLetter
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.store.bulk import MeantRow
from delayed_queue.queue.store.dead_letters import DeadLetterManager, RedrivenRow
from delayed_queue.testing.batches import InMemoryBatches
from delayed_queue.testing.stores import InMemoryStore, Letter, Row, instant

if TYPE_CHECKING:
    _Letters = DeadLetterManager[DeadLetter]  # for its signatures, as in messages.py
else:
    _Letters = object


class InMemoryLetters(_Letters):
    """The statements of DeadLetterManager."""

    def __init__(self, store: InMemoryStore, batches: InMemoryBatches) -> None:
        self._store = store
        self._batches = batches

    def redrive(
        self, ids: Sequence[int], *, overwrite: bool = False, kind: str | None = None,
        now: int | None = None, **_: Any,
    ) -> list[RedrivenRow]:  # fmt: skip
        at = instant(now)
        found = [letter for letter in self._store.letters_of(kind) if letter.id in ids]
        newest = {_name(letter.row): letter for letter in found}
        elsewhere = {
            _name(row) for row in self._store.rows.values() if self._is_elsewhere(row, newest)
        }
        created = {
            newest[name].id: self._offer(newest[name], overwrite=overwrite, at=at)
            for name in sorted(newest)
            if name not in elsewhere
        }
        return [RedrivenRow(each.id, created.get(each.id), each.row.kind) for each in found]

    def _is_elsewhere(self, row: Row, newest: dict[tuple[str, str], Letter]) -> bool:
        letter = newest.get(_name(row))
        return letter is not None and letter.row.kind != row.kind

    def _offer(self, letter: Letter, *, overwrite: bool, at: int) -> bool | None:
        dead = letter.row
        active = self._store.find(dead.kind, dead.key)
        if active is not None and not overwrite:
            return None
        row_id = self._store.new_id() if active is None else active.id
        first = dead.scheduled_at_initially if _keeps_schedule(dead) else at
        due_at = at if dead.group is None else min(at, dead.scheduled_at_initially + 1)
        self._store.put(
            Row(
                row_id, dead.kind, dead.key, dead.payload, due_at, first, at, dead.headers,
                group=dead.group,
                batch_id=dead.batch_id if active is None else active.batch_id or dead.batch_id,
            )
        )  # fmt: skip
        del self._store.letters[letter.id]
        self._batches.take_back(dead)
        return active is None

    def next_letters(
        self,
        kind: str,
        *,
        after: tuple[int, int],
        reason: str | None = None,
        limit: int = 1000,
        **_: Any,
    ) -> list[MeantRow]:
        letters = self._store.letters_of(kind)
        wanted = [each for each in letters if each.reason.startswith(reason or "")]
        newest = {each.row.key: each.id for each in wanted}
        rows = [
            MeantRow(each.id, each.row.key, each.died_at, "", newest[each.row.key] == each.id)
            for each in sorted(wanted, key=lambda each: (each.died_at, each.id))
        ]
        return [row for row in rows if (row.died_at, row.id) > after][:limit]

    def batch_size(self, kind: str, **_: Any) -> int:
        return 1000

    def prune(
        self, kind: str, age: int, *, limit: int = 1000, now: int | None = None, **_: Any
    ) -> int:
        old = sorted(
            (letter.died_at, letter.id)
            for letter in self._store.letters_of(kind)
            if letter.died_at < instant(now) - age and not self._blocks(letter)
        )[:limit]
        for _at, letter_id in old:
            del self._store.letters[letter_id]
        self._batches.finish(self._store.batches, now)
        return len(old)

    def _blocks(self, letter: Letter) -> bool:
        kind, group = letter.row.kind, letter.row.group
        if group is None or not self._store.limit_of(kind).blocks_on_dead:
            return False
        resumed_at = self._store.limit_of(kind, group).resumed_at
        return resumed_at is None or resumed_at < letter.died_at


def _name(row: Row) -> tuple[str, str]:
    """Return the key with its kind, or with the name of the kind's family."""
    family = hooks.kind_family
    return row.key, (family and family.name_of(row.kind)) or row.kind


def _keeps_schedule(row: Row) -> bool:
    family = hooks.kind_family
    return row.group is not None or (
        family is not None and re.search(family.keeps_schedule, row.kind) is not None
    )
