"""The rows of an in-memory queue, behind one lock, with transactions."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count

from delayed_queue.cron.store import ScheduleRow
from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.messages import to_milliseconds


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the queue's table."""

    id: int
    kind: str
    key: str
    payload: bytes
    scheduled_at: int
    scheduled_at_initially: int
    created_at: int
    headers: str | None
    lease_id: str | None = None
    attempts: int = 0
    due_at: int | None = None
    first_error: str | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """A row of the dead letters' table."""

    id: int
    kind: str
    key: str
    payload: bytes
    headers: str | None
    attempts: int
    reason: str
    first_error: str | None
    last_error: str | None
    scheduled_at_initially: int
    created_at: int
    died_at: int


class InMemoryStore:
    """The tables, behind one lock; share one to have several queues see each other.

    A transaction holds the lock to its end, so transactions are serial: whoever waits inside
    ``consume()`` for another thread's use of the same store waits for ever.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.rows: dict[int, Row] = {}
        self.letters: dict[int, Letter] = {}
        self.schedules: dict[tuple[str, str], ScheduleRow] = {}
        self.paused: frozenset[str] = frozenset()
        self.new_id = count(1).__next__
        self._ids: dict[tuple[str, str], int] = {}
        self._wake_channels: set[WakeChannel] = set()
        self._depth = 0

    def find(self, kind: str, key: str) -> Row | None:
        row_id = self._ids.get((kind, key))
        return None if row_id is None else self.rows[row_id]

    def put(self, row: Row) -> Row:
        self.rows[row.id] = row
        self._ids[row.kind, row.key] = row.id
        return row

    def remove(self, row: Row) -> None:
        del self.rows[row.id]
        del self._ids[row.kind, row.key]

    def of_kind(self, kind: str) -> list[Row]:
        return [row for row in self.rows.values() if row.kind == kind]

    def of_lease(self, lease_id: str) -> list[Row]:
        return [row for row in self.rows.values() if row.lease_id == lease_id]

    def letters_of(self, kind: str | None) -> list[Letter]:
        """Return the dead letters of the kind, of all kinds for None, oldest first."""
        return [
            letter
            for _, letter in sorted(self.letters.items())
            if kind is None or letter.kind == kind
        ]

    def earliest_due(self, kind: str, limit: int, now: int) -> list[Row]:
        if kind in self.paused:
            return []
        due = (row for row in self.of_kind(kind) if row.scheduled_at <= now)
        return heapq.nsmallest(limit, due, key=lambda row: (row.scheduled_at, row.id))

    def under_lease(self, lease_id: str | None, ids: Sequence[int]) -> list[Row]:
        rows = (self.rows.get(row_id) for row_id in dict.fromkeys(ids))
        return [row for row in rows if row is not None and row.lease_id == lease_id]

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Keep all changes of the block, or none when it raises."""
        with self.lock:
            if durable and self._depth:
                raise RuntimeError("A durable transaction cannot be nested within another.")
            before = (
                self.rows.copy(), self.letters.copy(), self._ids.copy(), self.schedules.copy(),
                self.paused,
            )  # fmt: skip
            self._depth += 1
            try:
                yield
            except BaseException:
                self.rows, self.letters, self._ids, self.schedules, self.paused = before
                raise
            finally:
                self._depth -= 1

    def watch(self, wake_channel: WakeChannel) -> None:
        """Ring the wake channel when a message was offered that may be due soon."""
        with self.lock:
            self._wake_channels.add(wake_channel)

    def unwatch(self, wake_channel: WakeChannel) -> None:
        with self.lock:
            self._wake_channels.discard(wake_channel)

    def wake(self) -> None:
        with self.lock:
            for wake_channel in self._wake_channels:
                wake_channel.wake()


def instant(now: int | None) -> int:
    """Return the given instant, or the host clock's when there is none."""
    return to_milliseconds(datetime.now(UTC)) if now is None else now
