"""The rows of an in-memory queue under one lock, and a clock for tests."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final
from weakref import WeakSet

from delayed_queue.db.wakeups import WakeChannel
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import to_milliseconds
from delayed_queue.queue.store.claim import LeasedRow
from delayed_queue.queue.store.offer import Offered

START: Final = datetime(2030, 1, 1, tzinfo=UTC)


class ManualClock:
    """A queue's ``clock`` for tests: ``DelayedQueue("orders", clock=ManualClock())``.

    It starts at 2030-01-01T00:00Z by default. Moving it wakes the threads that wait in
    ``InMemoryQueue.poll()`` with this clock. Queues and threads may share it.
    """

    def __init__(self, now: datetime = START) -> None:
        self._now = _aware(now)
        self._wake_channels: WeakSet[WakeChannel] = WeakSet()

    def __call__(self) -> datetime:
        return self._now

    def __repr__(self) -> str:
        return f"<ManualClock {self._now.isoformat()}>"

    def advance(self, by: timedelta) -> datetime:
        """Move the clock forward and return its new time."""
        if by < timedelta(0):
            raise InvalidConfiguration(f"advance() goes forward, not by {by!r}; see set().")
        return self.set(self._now + by)

    def set(self, now: datetime) -> datetime:
        """Move the clock to the instant, earlier or later, and return it."""
        self._now = _aware(now)
        for wake_channel in tuple(self._wake_channels):
            wake_channel.wake()
        return self._now

    def watch(self, wake_channel: WakeChannel) -> None:
        """Wake the channel whenever the clock moves, while the channel exists."""
        self._wake_channels.add(wake_channel)


def _aware(now: datetime) -> datetime:
    if now.utcoffset() is None:
        raise InvalidConfiguration(f"A clock needs aware datetimes, not {now!r}.")
    return now


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
    group: str | None = None
    expires_at: int | None = None
    batch_id: int | None = None

    @property
    def is_begun(self) -> bool:
        return self.lease_id is not None or self.scheduled_at > self.scheduled_at_initially

    @property
    def was_delivered(self) -> bool:
        return self.lease_id is not None or self.attempts > 0

    def expires_in(self, now: int) -> int | None:
        return None if self.expires_at is None else self.expires_at - now

    def after(self, error: str | None, **changes: Any) -> Row:
        """Return the row with the error of its latest delivery, if any, and other changes."""
        if error is not None:
            first = error if self.first_error is None else self.first_error
            changes |= {"first_error": first, "last_error": error}
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Letter:
    """A row of the dead letters' table: the message, and its end."""

    id: int
    row: Row
    reason: str
    died_at: int


@dataclass(frozen=True, slots=True)
class LimitRow:
    """A row of the limits' table."""

    paused_at: int | None = None
    declared: str | None = None
    is_ordered: bool = False
    is_fair: bool = True
    blocks_on_dead: bool = False
    queue_interval: float | None = None
    queue_burst: int | None = None
    concurrency: int | None = None
    weight: int | None = None
    interval: float | None = None
    burst: int | None = None
    spent_until: float | None = None
    resumed_at: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRow:
    """A row of the batches' table: its message ``then``, and how members have left it."""

    then: Offered
    waits: bool
    is_closed: bool = False
    left: Mapping[str, int] = field(default_factory=dict)


NO_LIMITS: Final = LimitRow()


class InMemoryStore:
    """The tables under one lock; queues that share a store see each other's messages.

    A queue holds the lock during each operation, a transaction to its end. So code inside
    ``consume()`` must not wait for another thread that uses the same store.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.rows: dict[int, Row] = {}
        self.letters: dict[int, Letter] = {}
        self.limits: dict[tuple[str, str], LimitRow] = {}
        self.batches: dict[int, BatchRow] = {}
        self.new_id = count(1).__next__
        self._ids: dict[tuple[str, str], int] = {}
        self._wake_channels: set[WakeChannel] = set()
        self._depth = 0

    def find(self, kind: str, key: str) -> Row | None:
        row_id = self._ids.get((kind, key))
        return None if row_id is None else self.rows[row_id]

    def lease(self, row: Row, lease_id: str, now: int, lease: int) -> LeasedRow:
        until = now + lease
        attempts, due_at = row.attempts + 1, row.scheduled_at
        self.put(
            replace(row, lease_id=lease_id, scheduled_at=until, due_at=due_at, attempts=attempts)
        )
        return LeasedRow(
            row.id, row.key, row.payload, row.scheduled_at_initially, due_at, until, attempts,
            row.headers, row.expires_in(now), row.lease_id is not None, row.group, row.batch_id,
        )  # fmt: skip

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
        letters = (letter for _, letter in sorted(self.letters.items()))
        return [letter for letter in letters if kind in (None, letter.row.kind)]

    def earliest_due(self, kind: str, limit: int, now: int) -> list[Row]:
        if self.has_limits(kind):
            return []
        due = (row for row in self.of_kind(kind) if row.scheduled_at <= now)
        return heapq.nsmallest(limit, due, key=lambda row: (row.scheduled_at, row.id))

    def has_limits(self, kind: str) -> bool:
        return any(each == kind for each, _ in self.limits)

    def limit_of(self, kind: str, group: str = "") -> LimitRow:
        return self.limits.get((kind, group), NO_LIMITS)

    def under_lease(self, lease_id: str | None, ids: Sequence[int]) -> list[Row]:
        rows = (self.rows.get(row_id) for row_id in dict.fromkeys(ids))
        return [row for row in rows if row is not None and row.lease_id == lease_id]

    @property
    def is_in_transaction(self) -> bool:
        return self._depth > 0

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[None]:
        """Keep all changes of the block, or none if it raises."""
        with self.lock:
            if durable and self._depth:
                raise RuntimeError("A durable transaction cannot be nested within another.")
            before = (
                self.rows.copy(), self.letters.copy(), self._ids.copy(), self.limits.copy(),
                self.batches.copy(),
            )  # fmt: skip
            self._depth += 1
            try:
                yield
            except BaseException:
                self.rows, self.letters, self._ids, self.limits, self.batches = before
                raise
            finally:
                self._depth -= 1

    def watch(self, wake_channel: WakeChannel) -> None:
        """Wake the channel when a message is offered."""
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
    """Return the given instant; the host's clock by default."""
    return to_milliseconds(datetime.now(UTC)) if now is None else now
