"""A queue that keeps its messages in memory and shares the algorithms of DelayedQueue."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections

from delayed_queue.codecs import Codec
from delayed_queue.db.wakeups import Listener, StopSignal, WakeChannel
from delayed_queue.facade import DelayedQueue
from delayed_queue.messages import Envelope, to_milliseconds
from delayed_queue.models import Message, MessageManager
from delayed_queue.queue.store.claim import ConsumedRow, LeasedRow
from delayed_queue.queue.store.inspect import StatsRow, StoredRow
from delayed_queue.queue.store.offer import Columns
from delayed_queue.queue.store.settle import ExtendedRow
from delayed_queue.retries import RetryPolicy
from delayed_queue.testing.limits import InMemoryGroups, InMemoryLimits
from delayed_queue.testing.stores import InMemoryStore, Letter, ManualClock, Row, instant
from delayed_queue.testing.tables import InMemoryLetters, InMemorySchedules

T = TypeVar("T")

if TYPE_CHECKING:
    # mypy checks every signature against the manager's. At run time there is no such base: a
    # missing statement must fail instead of querying a database.
    _Messages = MessageManager[Message]
else:
    _Messages = object


class InMemoryMessages(InMemoryGroups, _Messages):
    """The statements of MessageManager."""

    def __init__(self, store: InMemoryStore) -> None:
        self._store = store

    def offer(
        self,
        kind: str,
        key: str,
        payload: bytes,
        *,
        can_update: bool,
        schedule_at: int | None = None,
        delay: int = 0,
        headers: str | None = None,
        group: str | None = None,
        now: int | None = None,
        channel: str | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool | None:
        at = instant(now)
        due_at = at + delay if schedule_at is None else schedule_at
        with self._store.lock:
            old = self._store.find(kind, key)
            if old is not None and not can_update:
                return None
            if old is not None and (old.payload, old.scheduled_at_initially) == (payload, due_at):
                return None
            row_id = self._store.new_id() if old is None else old.id
            self._store.put(
                Row(row_id, kind, key, payload, due_at, due_at, at, headers, group=group)
            )
        if channel is not None:
            self.notify(channel)
        return old is None

    def offer_batch(
        self,
        kind: str,
        offers: Columns,
        *,
        can_update: bool,
        now: int | None = None,
        channel: str | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> dict[str, bool]:
        at = instant(now)
        written: dict[str, bool] = {}
        with self._store.lock:
            for key, payload, schedule_at, text, group in zip(*offers, strict=True):
                created = self.offer(
                    kind, key, payload, can_update=can_update, schedule_at=schedule_at,
                    headers=text, group=group, now=at,
                )  # fmt: skip
                if created is not None:
                    written[key] = created
        if channel is not None:
            self.notify(channel)
        return written

    def claim(
        self,
        kind: str,
        limit: int,
        lease_id: str,
        lease: int,
        *,
        strict: bool = False,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[LeasedRow]:
        at = instant(now)
        with self._store.lock:
            return [
                self._lease(row, lease_id, at + lease)
                for row in self._store.earliest_due(kind, limit, at)
            ]

    def _lease(self, row: Row, lease_id: str, until: int) -> LeasedRow:
        attempts, due_at = row.attempts + 1, row.scheduled_at
        leased = replace(
            row, lease_id=lease_id, due_at=due_at, scheduled_at=until, attempts=attempts
        )
        self._store.put(leased)
        return LeasedRow(
            row.id, row.key, row.payload, row.scheduled_at_initially, row.scheduled_at, until,
            row.attempts + 1, row.headers, row.lease_id is not None, row.group,
        )  # fmt: skip

    def consume(
        self, kind: str, limit: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[ConsumedRow]:
        with self._store.lock:
            taken = self._store.earliest_due(kind, limit, instant(now))
            for row in taken:
                self._store.remove(row)
        return [
            ConsumedRow(
                row.id, row.key, row.payload, row.scheduled_at_initially, row.scheduled_at,
                row.scheduled_at, row.attempts + 1, row.headers, row.lease_id is not None,
                row.created_at, row.first_error, row.last_error, row.group,
            )
            for row in taken
        ]  # fmt: skip

    def restore(
        self, kind: str, row: ConsumedRow, lease_id: str, *, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        with self._store.lock:
            self._store.put(
                Row(
                    row.id, kind, row.key, row.payload, row.due_at, row.scheduled_at,
                    row.created_at, row.headers, lease_id, row.attempts, row.due_at,
                    row.first_error, row.last_error, row.group,
                )
            )  # fmt: skip

    def acknowledge(
        self, lease_id: str | None, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS
    ) -> list[int]:
        return self._remove(lambda: self._store.under_lease(lease_id, ids))

    def acknowledge_lease(self, lease_id: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        return len(self._remove(lambda: self._store.of_lease(lease_id)))

    def release(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        *,
        delay: int | None = 0,
        refund: int = 0,
        error: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[int]:
        at = instant(now)
        with self._store.lock:
            released = [
                self._store.put(
                    replace(
                        row,
                        scheduled_at=_due_again(row, at, delay),
                        lease_id=None,
                        attempts=max(row.attempts - refund, 0),
                        first_error=error if row.first_error is None else row.first_error,
                        last_error=row.last_error if error is None else error,
                    )
                )
                for row in self._store.under_lease(lease_id, ids)
            ]
        return [row.id for row in released]

    def extend(
        self,
        lease_ids: Sequence[str],
        ids: Sequence[int],
        lease: int,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[ExtendedRow]:
        until = instant(now) + lease
        with self._store.lock:
            rows = (self._store.rows.get(row_id) for row_id in dict.fromkeys(ids))
            held = [row for row in rows if row is not None and row.lease_id in lease_ids]
            for row in held:
                self._store.put(replace(row, scheduled_at=max(row.scheduled_at, until)))
        return [
            ExtendedRow(row.id, str(row.lease_id), max(row.scheduled_at, until)) for row in held
        ]

    def dead_letter(
        self,
        lease_id: str | None,
        ids: Sequence[int],
        reason: str,
        *,
        error: str | None = None,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> list[int]:
        at = instant(now)
        with self._store.lock:
            rows = self._store.under_lease(lease_id, ids)
            for row in rows:
                self._store.remove(row)
                letter = _letter(self._store.new_id(), row, reason, error, at)
                self._store.letters[letter.id] = letter
        return [row.id for row in rows]

    def read(
        self, kind: str, key: str, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> StoredRow | None:
        with self._store.lock:
            row = self._store.find(kind, key)
        if row is None:
            return None
        return StoredRow(
            row.scheduled_at, row.scheduled_at_initially, row.created_at, row.lease_id,
            row.attempts, row.headers, row.last_error, row.payload, instant(now), row.group,
        )  # fmt: skip

    def has_key(self, kind: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        with self._store.lock:
            return self._store.find(kind, key) is not None

    def drop(self, kind: str, key: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        with self._store.lock:
            row = self._store.find(kind, key)
            return bool(self._remove(lambda: [] if row is None else [row]))

    def drop_all(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> int:
        return len(self._remove(lambda: self._store.of_kind(kind)))

    def next_due(
        self,
        kinds: Sequence[str],
        horizon: int,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> int | None:
        at = instant(now)
        with self._store.lock:
            later = (row.scheduled_at for kind in kinds for row in self._store.of_kind(kind))
            return min((due - at for due in later if at < due <= at + horizon), default=None)

    def stats(
        self, kind: str, cap: int, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> StatsRow:
        at = instant(now)
        with self._store.lock:
            rows = self._store.of_kind(kind)
            letters = self._store.letters_of(kind)
        due = [row for row in rows if row.scheduled_at <= at]
        leased = [row for row in rows if row.scheduled_at > at and row.lease_id is not None]
        scheduled = len(rows) - len(due) - len(leased)
        due_count, dead = min(len(due), cap), min(len(letters), cap)
        age = max((at - row.scheduled_at for row in due), default=None)
        return StatsRow(due_count, min(scheduled, cap), min(len(leased), cap), dead, age)

    def notify(self, channel: str, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Wake every poll on the store, also those of other kinds."""
        self._store.wake()

    def _remove(self, choose: Callable[[], list[Row]]) -> list[int]:
        with self._store.lock:
            rows = choose()
            for row in rows:
                self._store.remove(row)
        return [row.id for row in rows]


def _due_again(row: Row, at: int, delay: int | None) -> int:
    """Return the new due time; the earlier one if there is no delay."""
    if delay is None:
        return at if row.due_at is None else row.due_at
    return at + delay


def _letter(letter_id: int, row: Row, reason: str, error: str | None, at: int) -> Letter:
    return Letter(
        letter_id, row.kind, row.key, row.payload, row.headers, row.attempts, reason,
        error if row.first_error is None else row.first_error,
        row.last_error if error is None else error,
        row.scheduled_at_initially, row.created_at, at, row.group,
    )  # fmt: skip


class InMemoryQueue(DelayedQueue):
    """A DelayedQueue for tests that have no database; it passes the same contract.

    Each queue has its own store by default. Queues that share a store see each other's messages,
    like queues of one database. Database transactions have no effect on it; ``consume()`` is a
    transaction of the store.
    """

    def __init__(
        self,
        name: str,
        *,
        codec: str | Codec = "json",
        using: str = DEFAULT_DB_ALIAS,
        lease_duration: timedelta | None = None,
        poll_interval: timedelta | None = None,
        retry_policy: RetryPolicy | None = None,
        clock: Callable[[], datetime] | None = None,
        kind: str | None = None,
        claim: str = "fast",
        store: InMemoryStore | None = None,
    ) -> None:
        super().__init__(
            name,
            codec=codec,
            using=using,
            lease_duration=lease_duration,
            poll_interval=poll_interval,
            retry_policy=retry_policy,
            clock=clock,
            kind=kind,
            claim=claim,
        )
        self.store = InMemoryStore() if store is None else store
        self._messages = InMemoryMessages(self.store)
        self._letters = InMemoryLetters(self.store)
        self._limits = InMemoryLimits(self.store)

    def _schedules(self) -> InMemorySchedules:
        return InMemorySchedules(self.store)

    def _now(self) -> int:
        return to_milliseconds(self._local_now())

    def _repeat(self, call: Callable[[], T], **doubts: Any) -> T:
        return call()

    def _transaction(self, *, durable: bool = False) -> Any:
        # As the real consume(): the code under test must see the error.
        if durable and _in_a_transaction(self.using):
            raise RuntimeError("consume() cannot be used inside a transaction.")
        return self.store.transaction(durable=durable)

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
