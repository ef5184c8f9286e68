"""A queue that keeps its messages in memory and shares the algorithms of DelayedQueue."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from django.db import connections

from delayed_queue.db.wakeups import Listener, StopSignal, WakeChannel
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.facade import DelayedQueue
from delayed_queue.messages import Envelope, to_milliseconds
from delayed_queue.models import Message, MessageManager
from delayed_queue.queue.store.claim import ConsumedRow, LeasedRow
from delayed_queue.queue.store.finishing import DIED, DONE, DROPPED
from delayed_queue.queue.store.inspect import StatsRow, StoredRow
from delayed_queue.queue.store.offer import Columns
from delayed_queue.queue.store.settle import ExtendedRow
from delayed_queue.testing.batches import InMemoryBatches
from delayed_queue.testing.limits import InMemoryGroups, InMemoryLimits
from delayed_queue.testing.stores import InMemoryStore, Letter, ManualClock, Row, instant
from delayed_queue.testing.tables import InMemoryLetters

T = TypeVar("T")

if TYPE_CHECKING:
    # mypy checks every signature against the manager's. At run time there is no such base: a
    # missing statement must fail instead of querying a database.
    _Messages = MessageManager[Message]
else:
    _Messages = object


class InMemoryMessages(InMemoryGroups, _Messages):
    """The statements of MessageManager."""

    def offer(
        self, kind: str, key: str, payload: bytes, *, can_update: bool,
        schedule_at: int | None = None, delay: int = 0, headers: str | None = None,
        group: str | None = None, expires_at: int | None = None, expires_in: int | None = None,
        latest: int | None = None, now: int | None = None, channel: str | None = None, **_: Any,
    ) -> bool | None:  # fmt: skip
        at = instant(now)
        due_at = at + delay if schedule_at is None else schedule_at
        expires_at = expires_at if expires_in is None else at + expires_in
        old = self._store.find(kind, key)
        if old is not None and not can_update:
            return None
        if latest is not None and old is not None and not old.was_delivered:
            at = old.created_at
            due_at = min(due_at, at + latest)
        new = (payload, due_at, expires_at)
        if old is not None and (old.payload, old.scheduled_at_initially, old.expires_at) == new:
            return None
        row_id = self._store.new_id() if old is None else old.id
        self._store.put(
            Row(
                row_id, kind, key, payload, due_at, due_at, at, headers, group=group,
                expires_at=expires_at, batch_id=None if old is None else old.batch_id,
            )
        )  # fmt: skip
        if channel is not None:
            self.notify(channel)
        return old is None

    def offer_batch(
        self, kind: str, offers: Columns, *, can_update: bool, now: int | None = None,
        channel: str | None = None, **_: Any,
    ) -> dict[str, bool]:  # fmt: skip
        written = {
            key: self.offer(
                kind, key, payload, can_update=can_update, schedule_at=schedule_at,
                headers=headers, group=group, expires_at=expires_at, now=now,
            )
            for key, payload, schedule_at, headers, group, expires_at in zip(*offers, strict=True)
        }  # fmt: skip
        if channel is not None:
            self.notify(channel)
        return {key: created for key, created in written.items() if created is not None}

    def claim(
        self, kind: str, limit: int, lease_id: str, lease: int, *, now: int | None = None, **_: Any
    ) -> list[LeasedRow]:
        at = instant(now)
        rows = self._store.earliest_due(kind, limit, at)
        return [self._store.lease(row, lease_id, at, lease) for row in rows]

    def consume(
        self, kind: str, limit: int, *, now: int | None = None, **_: Any
    ) -> list[ConsumedRow]:
        at = instant(now)
        taken = self._store.earliest_due(kind, limit, at)
        for row in taken:
            self._store.remove(row)
        return [
            ConsumedRow(
                row.id, row.key, row.payload, row.scheduled_at_initially, row.scheduled_at,
                row.scheduled_at, row.attempts + 1, row.headers, row.expires_in(at),
                row.lease_id is not None, row.created_at, row.first_error, row.last_error,
                row.group, row.expires_at, row.batch_id,
            )
            for row in taken
        ]  # fmt: skip

    def restore(self, kind: str, row: ConsumedRow, lease_id: str, **_: Any) -> None:
        self._store.put(
            Row(
                row.id, kind, row.key, row.payload, row.due_at, row.scheduled_at, row.created_at,
                row.headers, lease_id, row.attempts, row.due_at, row.first_error, row.last_error,
                row.group, row.expires_at, row.batch_id,
            )
        )  # fmt: skip

    def acknowledge(
        self, lease_id: str | None, ids: Sequence[int], *, outcome: str = DONE,
        now: int | None = None, **_: Any,
    ) -> list[int]:  # fmt: skip
        return self._remove(self._store.under_lease(lease_id, ids), outcome, now)

    def acknowledge_lease(self, lease_id: str, **_: Any) -> int:
        return len(self._remove(self._store.of_lease(lease_id), DONE))

    def release(
        self, lease_id: str | None, ids: Sequence[int], *, delay: int | None = 0, refund: int = 0,
        error: str | None = None, now: int | None = None, **_: Any,
    ) -> list[int]:  # fmt: skip
        rows = self._store.under_lease(lease_id, ids)
        for row in rows:
            due_at, attempts = _due_again(row, instant(now), delay), max(row.attempts - refund, 0)
            released = row.after(error, scheduled_at=due_at, lease_id=None, attempts=attempts)
            self._store.put(released)
        return [row.id for row in rows]

    def extend(
        self, lease_ids: Sequence[str], ids: Sequence[int], lease: int, *, now: int | None = None,
        **_: Any,
    ) -> list[ExtendedRow]:  # fmt: skip
        until = instant(now) + lease
        held = [row for each in {*lease_ids} for row in self._store.under_lease(each, ids)]
        extended = [
            self._store.put(replace(row, scheduled_at=max(row.scheduled_at, until))) for row in held
        ]
        return [ExtendedRow(row.id, str(row.lease_id), row.scheduled_at) for row in extended]

    def dead_letter(
        self, lease_id: str | None, ids: Sequence[int], reason: str, *, error: str | None = None,
        now: int | None = None, **_: Any,
    ) -> list[int]:  # fmt: skip
        rows = self._store.under_lease(lease_id, ids)
        for row in rows:
            batch = self._store.batches.get(row.batch_id or 0)
            kept = row.batch_id if batch is not None and batch.waits else None
            dead = row.after(error, batch_id=kept)
            letter = Letter(self._store.new_id(), dead, reason, instant(now))
            self._store.letters[letter.id] = letter
        return self._remove(rows, DIED, now)

    def read(self, kind: str, key: str, *, now: int | None = None, **_: Any) -> StoredRow | None:
        row = self._store.find(kind, key)
        if row is None:
            return None
        return StoredRow(
            row.scheduled_at, row.scheduled_at_initially, row.created_at, row.lease_id,
            row.attempts, row.headers, row.last_error, row.payload, instant(now), row.group,
            row.expires_at,
        )  # fmt: skip

    def has_key(self, kind: str, key: str, **_: Any) -> bool:
        return self._store.find(kind, key) is not None

    def drop(self, kind: str, key: str, **_: Any) -> bool:
        row = self._store.find(kind, key)
        return bool(self._remove([] if row is None else [row], DROPPED))

    def drop_all(self, kind: str, **_: Any) -> int:
        return len(self._remove(self._store.of_kind(kind), DROPPED))

    def next_due(
        self, kinds: Sequence[str], horizon: int, *, now: int | None = None, **_: Any
    ) -> int | None:
        at = instant(now)
        later = (row.scheduled_at for kind in kinds for row in self._store.of_kind(kind))
        return min((due - at for due in later if at < due <= at + horizon), default=None)

    def stats(self, kind: str, cap: int, *, now: int | None = None, **_: Any) -> StatsRow:
        at, rows = instant(now), self._store.of_kind(kind)
        late = [at - row.scheduled_at for row in rows if row.scheduled_at <= at]
        leased = sum(row.scheduled_at > at and row.lease_id is not None for row in rows)
        scheduled, dead = len(rows) - len(late) - leased, len(self._store.letters_of(kind))
        return StatsRow(
            min(len(late), cap), min(scheduled, cap), min(leased, cap), min(dead, cap),
            max(late, default=None),
        )  # fmt: skip

    def notify(self, channel: str, **_: Any) -> None:
        """Wake every poll on the store, also those of other kinds."""
        self._store.wake()

    def _remove(self, rows: Iterable[Row], outcome: str, now: int | None = None) -> list[int]:
        found = list(rows)
        for row in found:
            self._store.remove(row)
        InMemoryBatches(self._store, self.offer).leave(found, outcome, now)
        return [row.id for row in found]


def _due_again(row: Row, at: int, delay: int | None) -> int:
    """Return the new due time; the earlier one if there is no delay."""
    if delay is None:
        return at if row.due_at is None else row.due_at
    return at + delay


class InMemoryQueue(DelayedQueue):
    """A DelayedQueue for tests that have no database; it passes the same contract.

    Each queue has its own store by default. Queues that share a store see each other's messages,
    like queues of one database. Database transactions have no effect on it; ``consume()`` is a
    transaction of the store. It has no ``cron``.
    """

    def __init__(
        self, name: str, *, store: InMemoryStore | None = None, **options: Any
    ) -> None:  # the options of DelayedQueue
        super().__init__(name, **options)
        self.store = InMemoryStore() if store is None else store
        self._messages = InMemoryMessages(self.store)
        self._batches = InMemoryBatches(self.store, self._messages.offer)
        self._letters = InMemoryLetters(self.store, self._batches)
        self._limits = InMemoryLimits(self.store)

    @property
    def cron(self) -> NoReturn:
        """Raise InvalidConfiguration: the ticks of schedules are tested on PostgreSQL."""
        raise InvalidConfiguration("An in-memory queue has no schedules; use a DelayedQueue.")

    def _true_now(self) -> datetime:
        return self._local_now()

    def _now(self) -> int:
        return to_milliseconds(self._local_now())

    def _repeat(self, call: Callable[[], T], **doubts: Any) -> T:
        with self.store.lock:
            return call()

    def _transaction(self, *, durable: bool = False) -> Any:
        # As the real consume(): the code under test must see the error.
        if durable and _in_a_transaction(self.using):
            raise RuntimeError("consume() cannot be used inside a transaction.")
        return self.store.transaction(durable=durable)

    def _is_in_transaction(self) -> bool:
        return self.store.is_in_transaction

    @property
    def _database(self) -> InMemoryStore:
        return self.store

    def _handler_block(self) -> Any:
        return self.store.transaction()

    def _check_effects(self) -> None:
        """Nothing: a store has no constraints."""

    def _try_poll_until(self, stop: StopSignal | None) -> Envelope | None:
        return None if stop is not None and stop.is_set() else self.try_poll()

    def _listener(self) -> Listener:
        return InMemoryListener(self.store, self.clock, self.using)


class InMemoryListener(Listener):
    """Sleep until a message is offered to the store, or its manual clock is moved."""

    def __init__(
        self, store: InMemoryStore, clock: Callable[[], datetime] | None, using: str
    ) -> None:
        super().__init__([], using)
        self._store = store
        self._clock = clock

    def __enter__(self) -> InMemoryListener:
        self._wake_channel = WakeChannel()
        self._store.watch(self._wake_channel)
        if isinstance(self._clock, ManualClock):
            self._clock.watch(self._wake_channel)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._store.unwatch(self._wake_channel)
        self._wake_channel.close()

    def wait(self, seconds: float, *wake_channels: WakeChannel | None) -> bool:
        rung = [self._wake_channel, *filter(None, wake_channels)]
        ready, _, _ = select.select(rung, [], [], max(seconds, 0))
        self._wake_channel.clear()
        return self._wake_channel in ready


def _in_a_transaction(using: str) -> bool:
    blocks: list[Any] = connections[using].atomic_blocks
    # Django lets a durable block begin within TestCase's own; so do we.
    return bool(blocks) and not blocks[-1]._from_testcase  # noqa: SLF001
