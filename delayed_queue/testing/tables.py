"""Dead letters and schedules of an in-memory queue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.cron.store import ScheduleManager, ScheduleRow, TickRow
from delayed_queue.models import DeadLetter, Schedule
from delayed_queue.queue.hooks import hooks
from delayed_queue.queue.store.dead_letters import DeadLetterManager, ListedRow, RedrivenRow
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
        active = self._store.find(letter.kind, letter.key)
        if active is not None and not overwrite:
            return None
        row_id = self._store.new_id() if active is None else active.id
        first = letter.scheduled_at_initially if _keeps_schedule(letter) else at
        self._store.put(
            Row(
                row_id, letter.kind, letter.key, letter.payload, _old_place(letter, at), first, at,
                letter.headers, group=letter.group,
            )
        )  # fmt: skip
        del self._store.letters[letter.id]
        return active is None

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

    def batch_size(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
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
                if letter.died_at < instant(now) - age and not self._blocks(letter)
            ]
            return self.drop([letter_id for _, letter_id in sorted(old)[:limit]])

    def _blocks(self, letter: Letter) -> bool:
        if letter.group is None or not self._store.limit_of(letter.kind).blocks_on_dead:
            return False
        resumed_at = self._store.limit_of(letter.kind, letter.group).resumed_at
        return resumed_at is None or resumed_at < letter.died_at

    def drop(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        with self._store.lock:
            found = [letter_id for letter_id in set(ids) if letter_id in self._store.letters]
            for letter_id in found:
                del self._store.letters[letter_id]
        return len(found)


def _name(row: Row | Letter) -> tuple[str, str]:
    """Return the key with its kind, or with the name of the kind's family."""
    family = hooks.kind_family
    return row.key, (family and family.name_of(row.kind)) or row.kind


def _old_place(letter: Letter, at: int) -> int:
    return at if letter.group is None else min(at, letter.scheduled_at_initially + 1)


def _keeps_schedule(letter: Letter) -> bool:
    if letter.group is not None:
        return True
    family = hooks.kind_family
    return family is not None and re.search(family.keeps_schedule, letter.kind) is not None


if TYPE_CHECKING:
    _Schedules = ScheduleManager[Schedule]  # for its signatures, as in messages.py
else:
    _Schedules = object

_STATE: Final = ("config_hash", "retired_hashes", "last_tick", "installed_at", "interval")
_TICK: Final = re.compile(r"[^/]+/-?[0-9]{1,19}")


class InMemorySchedules(_Schedules):
    """The statements of ScheduleManager; a transaction of the store locks."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def lock(
        self,
        kind: str,
        key_prefix: str,
        *,
        queue: str,
        codec: str,
        using: str = DEFAULT_DB_ALIAS,
    ) -> ScheduleRow:
        row = ScheduleRow(
            kind, key_prefix, queue, codec, "", "", "", "shift", "", "latest", 100, None, "",
            True, "", "[]", None, None, None,
        )  # fmt: skip
        with self._store.lock:
            return self._store.schedules.setdefault((kind, key_prefix), row)

    def read(
        self,
        kind: str,
        key_prefix: str,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[int, ScheduleRow | None]:
        with self._store.lock:
            return instant(now), self._store.schedules.get((kind, key_prefix))

    def described(
        self, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[tuple[int, ScheduleRow]]:
        with self._store.lock:
            return [(instant(now), row) for row in self._store.schedules.values() if row.type]

    def pending_ticks(
        self,
        kind: str,
        key_prefix: str,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[int, list[TickRow]]:
        at = instant(now)
        start = f"{key_prefix}/"
        with self._store.lock:
            rows = [
                row
                for row in self._store.of_kind(kind)
                if row.key.startswith(start) and _TICK.fullmatch(row.key, len(start))
            ]
        return at, [
            TickRow(row.id, row.key, row.lease_id is not None and row.scheduled_at > at)
            for row in sorted(rows, key=lambda row: row.key)
        ]

    def drop_ticks(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        with self._store.lock:
            rows = [self._store.rows[row_id] for row_id in ids if row_id in self._store.rows]
            for row in rows:
                self._store.remove(row)
        return len(rows)

    def save(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        with self._store.lock:
            old = self._store.schedules[row.kind, row.key_prefix]
            self._store.schedules[row.kind, row.key_prefix] = _with_state_of(row, old)

    def describe(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        with self._store.lock:
            old = self._store.schedules[row.kind, row.key_prefix]
            described = row._replace(payload=old.payload, is_enabled=old.is_enabled)
            self._store.schedules[row.kind, row.key_prefix] = _with_state_of(old, described)


def _with_state_of(row: ScheduleRow, described: ScheduleRow) -> ScheduleRow:
    """Return the description with the state of installation of ``row``."""
    return described._replace(**{name: getattr(row, name) for name in _STATE})
