"""``DelayedQueue``: all operations of a queue, each with its ``a``-prefixed form."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from asgiref.sync import sync_to_async

from delayed_queue.codecs import decode
from delayed_queue.db.resilience import never
from delayed_queue.durations import Duration, check_duration
from delayed_queue.exceptions import ConfirmationRequired, InvalidConfiguration
from delayed_queue.handlers import storable
from delayed_queue.messages import (
    MILLISECOND,
    Envelope,
    MessageState,
    OfferOutcome,
    QueueStats,
    StoredMessage,
    check_key,
    from_milliseconds,
)
from delayed_queue.queue.base import awaited, nothing
from delayed_queue.queue.groups import GroupService
from delayed_queue.queue.offering import Offering, outcome_of, redrive_again
from delayed_queue.queue.polling import Polling, seconds_of
from delayed_queue.queue.store.claim import NO_FLOOR
from delayed_queue.queue.store.inspect import StoredRow

if TYPE_CHECKING:
    from delayed_queue.cron.service import CronService


__all__ = ["DROP_ALL_CONFIRMATION", "DelayedQueue"]

DROP_ALL_CONFIRMATION: Final = "Yes, please, I know what I'm doing!"
STATS_CAP: Final = 10_000
_BATCH: Final = 1000


class DelayedQueue(Polling):
    """A named stream of messages, each delivered when it is due to one consumer at a time.

    An instance is cheap, holds no connection, and may be shared by threads. Every call runs
    on the calling thread's Django connection of the alias ``using`` and takes part in the
    transaction open there; outside one it commits by itself, and is repeated while the
    database is away (``ResourceUnavailable`` at the end of the retries).

    ``clock`` replaces the database's clock by a callable returning an aware datetime.
    ``kind`` replaces the stored partition value, to share a queue with another service.
    A method with the prefix ``a`` awaits the one without it in asgiref's thread for
    synchronous code.
    """

    @property
    def cron(self) -> CronService:
        """The cron service of this queue."""
        # Imported on first use: most programs need no schedules.
        from delayed_queue.cron.service import CronService
        from delayed_queue.cron.ticking import Ticks

        return CronService(Ticks(self))

    @property
    def groups(self) -> GroupService:
        """The limits and pauses of this queue's groups."""
        return GroupService(self, self._limits)

    # Operations

    def read(self, key: str) -> StoredMessage | None:
        """Return the message as it stands, without leasing it; None when there is none."""
        check_key(key)
        row = self._call(self._messages.read, key, now=self._now())
        return None if row is None else self._stored(key, row)

    def _stored(self, key: str, row: StoredRow) -> StoredMessage:
        return StoredMessage(
            key=key,
            queue=self.name,
            state=_state(row),
            attempts=row.attempts,
            scheduled_at=from_milliseconds(row.scheduled_at),
            scheduled_at_initially=from_milliseconds(row.scheduled_at_initially),
            created_at=from_milliseconds(row.created_at),
            lease_id=row.lease_id,
            headers=json.loads(row.headers) if row.headers else {},
            last_error=row.last_error or "",
            data=row.payload,
            decode=partial(decode, self.codec),
            group=row.group,
            expires_at=None if row.expires_at is None else from_milliseconds(row.expires_at),
        )

    def contains_message(self, key: str) -> bool:
        """Return whether a message is stored under the key, in any state."""
        check_key(key)
        return self._call(self._messages.has_key, key)

    def drop_message(self, key: str) -> bool:
        """Delete the message in any state; return whether there was one.

        Raises OutcomeUnknown if the connection was lost and the message is gone.
        """
        check_key(key)
        return self._call(self._messages.drop, key, doubt=nothing)

    def drop_all_messages(self, confirm: str) -> int:
        """Delete every message of this queue, leased ones too; return their number.

        Raises OutcomeUnknown if the connection was lost and no message is left.
        """
        if confirm != DROP_ALL_CONFIRMATION:
            raise ConfirmationRequired(
                f"To drop every message of {self.name!r}, pass {DROP_ALL_CONFIRMATION!r}."
            )
        return self._call(self._messages.drop_all, doubt=nothing)

    def stats(self, cap: int = STATS_CAP) -> QueueStats:
        """Count the queue's messages by state; each count stops at ``cap``."""
        if type(cap) is not int or not 1 <= cap <= 1_000_000:
            raise InvalidConfiguration(f"cap must be from 1 to 1000000, not {cap!r}.")
        row = self._call(self._messages.stats, cap, now=self._now())
        age = None if row.oldest_due_age is None else row.oldest_due_age * MILLISECOND
        return QueueStats(row.due, row.scheduled, row.leased, row.dead, age, cap)

    def redrive(
        self, letter_ids: Sequence[int], *, overwrite: bool = False
    ) -> dict[int, OfferOutcome]:
        """Offer dead letters again, due now; return the outcome of each one found.

        IGNORED ones stay dead: their key is in use again, or a newer dead letter of the key was
        redriven. ``overwrite`` replaces the active message instead. Locks of an app (``hooks``) are
        held to the end of the transaction. Raises OutcomeUnknown if the connection was lost and a
        dead letter is gone.
        """
        call = partial(
            self._letters.redrive, letter_ids, overwrite=overwrite, kind=self.kind,
            now=self._now(), using=self.using,
        )  # fmt: skip
        again = partial(redrive_again, letter_ids, call, kind=self.kind, using=self.using)
        rows = self._repeat(call, truth=again)
        if rows:
            self._wake()
        return {row.id: outcome_of(row.created) for row in rows}

    def redrive_all(
        self, *, reason: str | None = None, overwrite: bool = False
    ) -> Counter[OfferOutcome]:
        """Redrive all dead letters whose reason starts with the text, in batches of 1,000 at most.

        Messages that die again meanwhile are not redriven. If a key has several dead letters, the
        newest is offered; the others stay dead, IGNORED, with ``overwrite`` too.
        """
        ids, older = self._newest_ids(reason)
        outcomes = Counter({OfferOutcome.IGNORED: older} if older else {})
        size = self._call(self._letters.batch_size)
        for start in range(0, len(ids), size):
            batch = ids[start : start + size]
            outcomes.update(self.redrive(batch, overwrite=overwrite).values())
        return outcomes

    def _newest_ids(self, reason: str | None) -> tuple[Sequence[int], int]:
        """Return the ids of the newest dead letter per key, and the number of the others."""
        next_letters = partial(self._call, self._letters.next_letters, reason=reason, limit=_BATCH)
        # Eight bytes each: ten million letters fit.
        ids, older, after = array("q"), 0, (NO_FLOOR, 0)
        while batch := next_letters(after=after):
            ids.extend(each.id for each in batch if each.is_newest)
            older += sum(each.is_newest is False for each in batch)
            after = batch[-1].died_at, batch[-1].id
        return ids, older

    def prune_dead_letters(self, older_than: Duration) -> int:
        """Delete dead letters older than this, 1,000 at a time; return their number.

        Dead letters that block their group stay until the group is resumed.
        """
        age = check_duration("older_than", older_than, most=timedelta.max) // MILLISECOND
        total = 0
        prune = partial(self._call, self._letters.prune, age, limit=_BATCH, doubt=never)
        while batch := prune(now=self._now()):
            total += batch
        return total

    # Pausing: claims and consumers of all processes obey it

    def pause(self, reason: str = "", by: str = "") -> bool:
        """Deliver no message until resumed; return False if the queue is paused already.

        Offers continue. Messages in flight keep their leases: they can be acknowledged, extended
        and released. A second pause keeps the reason of the first. After a lost connection, False
        may also mean that an earlier try paused it.
        """
        texts = {"reason": storable(reason), "by": storable(by)}
        return self._call(self._limits.pause, now=self._now(), doubt=never, **texts)

    def resume(self) -> bool:
        """Deliver messages again and wake sleeping consumers; return whether it was paused.

        After a lost connection, False may also mean that an earlier try resumed it.
        """
        resumed = self._call(self._limits.resume, doubt=never)
        # Also after False: an earlier try whose result was lost has not woken the consumers.
        self._wake()
        return resumed

    def is_paused(self) -> bool:
        """Return whether the queue is paused."""
        return self._call(self._limits.is_paused)

    # Asynchronous forms

    aoffer_or_update = awaited(Offering.offer_or_update)
    aoffer_if_not_exists = awaited(Offering.offer_if_not_exists)
    aoffer_batch = awaited(Offering.offer_batch)
    atry_poll = awaited(Polling.try_poll)
    atry_poll_many = awaited(Polling.try_poll_many)
    aread = awaited(read)
    acontains_message = awaited(contains_message)
    adrop_message = awaited(drop_message)
    adrop_all_messages = awaited(drop_all_messages)
    astats = awaited(stats)
    aredrive = awaited(redrive)
    apause = awaited(pause)
    aresume = awaited(resume)
    ais_paused = awaited(is_paused)

    async def apoll(self, timeout: Duration | None = None) -> Envelope | None:
        """Wait for a due message without occupying a thread; None only on timeout.

        It polls at the next due time or after the poll interval, whichever comes first, and can be
        cancelled like any coroutine. It does not LISTEN, because all coroutines share the
        connection of asgiref's thread.
        """
        deadline = None if timeout is None else time.monotonic() + seconds_of(timeout)
        while True:
            envelope = await self.atry_poll()
            left = None if deadline is None else deadline - time.monotonic()
            if envelope is not None or (left is not None and left <= 0):
                return envelope
            nap = await sync_to_async(self.seconds_to_next_look)()
            await asyncio.sleep(nap if left is None else min(nap, left))


def _state(row: StoredRow) -> MessageState:
    if row.scheduled_at <= row.now:
        return MessageState.DUE
    return MessageState.SCHEDULED if row.lease_id is None else MessageState.LEASED
