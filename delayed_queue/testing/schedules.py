"""The statements of ScheduleManager, over an in-memory store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.cron.store import ScheduleManager, ScheduleRow, TickRow
from delayed_queue.models import Schedule
from delayed_queue.testing.stores import InMemoryStore, instant

if TYPE_CHECKING:
    _Schedules = ScheduleManager[Schedule]  # for its signatures, as in messages.py
else:
    _Schedules = object

_TICK: Final = re.compile(r"[^/]+/-?[0-9]{1,19}")


class InMemorySchedules(_Schedules):
    """The statements of ScheduleManager; a transaction of the store is what locks."""

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
            self._store.schedules[row.kind, row.key_prefix] = old._replace(
                config_hash=row.config_hash,
                retired_hashes=row.retired_hashes,
                last_tick=row.last_tick,
                installed_at=row.installed_at,
                interval=row.interval,
            )

    def describe(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        with self._store.lock:
            old = self._store.schedules[row.kind, row.key_prefix]
            self._store.schedules[row.kind, row.key_prefix] = row._replace(
                payload=old.payload,
                is_enabled=old.is_enabled,
                config_hash=old.config_hash,
                retired_hashes=old.retired_hashes,
                last_tick=old.last_tick,
                installed_at=old.installed_at,
                interval=old.interval,
            )
