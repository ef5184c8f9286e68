"""The base of every part of a queue: configuration, clock, transactions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from delayed_queue.codecs import Codec, check_kind, codec_named, kind_of
from delayed_queue.conf import check_interval, check_lease, get_settings
from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import (
    Lost,
    announce,
    check_vendor,
    drop_if_lost,
    is_in_transaction,
    never,
    repeat,
)
from delayed_queue.db.statements import run
from delayed_queue.db.wakeups import channel_of
from delayed_queue.durations import Duration
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MILLISECOND, check_claim, to_milliseconds
from delayed_queue.queue.models import DeadLetter, Limit, Message, StoredBatch
from delayed_queue.queue.store.claim import HANDLER
from delayed_queue.queue.store.groups import GroupRow
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.retries import RetryPolicy

P = ParamSpec("P")
T = TypeVar("T")


def awaited(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return the method as a coroutine function that runs it in asgiref's thread."""

    @functools.wraps(method)
    async def in_thread(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        # By name: a subclass may have a method of its own.
        found: Callable[P, T] = getattr(self, method.__name__)
        return await sync_to_async(found)(*args, **kwargs)

    in_thread.__name__ = f"a{method.__name__}"
    return in_thread


class QueueBase:
    """The configuration of a queue, and methods that the in-memory queue replaces."""

    def __init__(
        self,
        name: str,
        *,
        codec: str | Codec = "json",
        using: str = DEFAULT_DB_ALIAS,
        lease_duration: Duration | None = None,
        poll_interval: Duration | None = None,
        retry_policy: RetryPolicy | None = None,
        clock: Callable[[], datetime] | None = None,
        kind: str | None = None,
        claim: str = "fast",
    ) -> None:
        defaults = get_settings()
        self._messages = Message.objects
        self._letters = DeadLetter.objects
        self._limits = Limit.objects
        self._batches = StoredBatch.objects
        self.name = check_kind(name)
        self.codec = codec_named(codec)
        self.kind = check_kind(kind_of(name, self.codec) if kind is None else kind)
        self.using = using
        self.lease_duration = (
            defaults.LEASE_DURATION if lease_duration is None else check_lease(lease_duration)
        )
        self.poll_interval = (
            defaults.POLL_INTERVAL if poll_interval is None else check_interval(poll_interval)
        )
        self.retry_policy = defaults.RETRY_POLICY if retry_policy is None else retry_policy
        if not isinstance(self.retry_policy, RetryPolicy):
            raise InvalidConfiguration(f"retry_policy is {retry_policy!r}, not a RetryPolicy.")
        self.clock = clock
        self.claim = check_claim(claim)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind}>"

    # Replaced by the in-memory queue

    def _true_now(self) -> datetime:
        """Return the instant that decides on due times, which this host's clock may not show."""
        return database_now(self.using) if self.clock is None else self._local_now()

    def _now(self) -> int | None:
        """Return the instant of the queue's clock; None for the database's."""
        return None if self.clock is None else to_milliseconds(self._local_now())

    def _local_now(self) -> datetime:
        if self.clock is None:
            return datetime.now(UTC)
        now = self.clock()
        if now.utcoffset() is None:
            raise InvalidConfiguration(f"The clock returned {now!r}, not an aware datetime.")
        return now

    def _repeat(
        self,
        call: Callable[[], T],
        *,
        doubt: Callable[[T], bool] | None = None,
        truth: Callable[[Lost], T] | None = None,
    ) -> T:
        check_vendor(self.using)
        return repeat(self.using, call, doubt=doubt, truth=truth)

    def _call(
        self,
        method: Callable[..., T],
        *args: Any,
        doubt: Callable[[T], bool] | None = None,
        **options: Any,
    ) -> T:
        """Run a statement for this queue's kind and alias, repeated as ``_repeat`` does."""
        call = partial(method, self.kind, *args, using=self.using, **options)
        return self._repeat(call, doubt=doubt)

    def _transaction(self, *, durable: bool = False) -> Any:
        if durable or not connections[self.using].in_atomic_block:
            drop_if_lost(self.using)
        return transaction.atomic(using=self.using, durable=durable)

    def _is_in_transaction(self) -> bool:
        return is_in_transaction(self.using)

    @property
    def _database(self) -> object:
        """Equal for queues that one transaction can write."""
        return self.using

    def _handler_block(self) -> Any:
        """Return a context manager that undoes the writes of its block when it raises."""
        return HandlerBlock(self.using)

    def _check_effects(self) -> None:
        """Commit the handler's effects now, so that a failure can still be counted.

        The commit checks deferred constraints, such as Django's foreign keys; a rollback that was
        requested inside raises. The commit of the atomic block then does nothing. Inside a test's
        transaction only the constraints are checked.
        """
        is_outermost = len(connections[self.using].atomic_blocks) == 1
        behind = "COMMIT" if is_outermost else "SET CONSTRAINTS ALL DEFERRED"
        run(
            self.using, [("SET CONSTRAINTS ALL IMMEDIATE", {}), (behind, {})], savepoint=False
        )  # fmt: skip

    def _is_soon(self, schedule: int | None, delay: int) -> bool:
        """True if a sleeping poller could be late for the message unless woken."""
        if schedule is not None:
            delay = schedule - to_milliseconds(self._local_now())
        return delay * MILLISECOND <= self.poll_interval

    def _write_limits(self, write: Callable[[int | None], T]) -> T:
        """Write limits of the queue in one transaction, then wake sleeping pollers."""
        now = self._now()

        def change() -> T:
            with self._transaction():
                written = write(now)
                self._limits.tidy(self.kind, now=now, using=self.using)
            return written

        written = self._repeat(change, doubt=never)
        self._wake()
        return written

    def _read_rules(self) -> RulesRow | None:
        """Return the limits of the queue as a whole; None if it has none."""
        return self._call(self._limits.rules, now=self._now())

    def _read_groups(self, limit: int) -> list[GroupRow]:
        """Return the first groups that have messages, as a claim finds them."""
        return self._call(self._messages.groups, limit, now=self._now())

    @property
    def _channel(self) -> str:
        """The channel that announces its messages."""
        return channel_of(self.kind)

    def _wake(self) -> None:
        """Wake sleeping pollers; outside a transaction, in one of its own."""
        if get_settings().NOTIFY:
            announce(self.using, lambda: self._messages.notify(self._channel, using=self.using))


def wake_at_commit(kinds: Iterable[str], using: str) -> None:
    """Wake the listeners of the kinds once the transaction has committed.

    NOTIFY runs after the commit and by itself, because it serializes the commits of the whole
    database. If it fails, listeners poll at their next interval.
    """
    if get_settings().NOTIFY:
        for kind in kinds:
            wake = partial(Message.objects.notify, channel_of(kind), using=using)
            transaction.on_commit(wake, using=using, robust=True)


def nothing(answer: object) -> bool:
    """True for "nothing was there", which an earlier, lost try may explain."""
    return not answer


class HandlerBlock:
    """Undoes the writes of its block and its ``on_commit`` hooks when it raises.

    Like an inner atomic block of Django, with two round trips less: the statement that took the
    message has set the savepoint, and the COMMIT releases it.
    """

    def __init__(self, using: str) -> None:
        self._connection: Any = connections[using]

    def __enter__(self) -> None:
        # By this list Django finds the on_commit hooks that a rollback discards.
        self._connection.savepoint_ids.append(HANDLER)

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        self._connection.savepoint_ids.pop()
        if exc_type is None or self._connection.closed_in_transaction:
            return
        self._connection.needs_rollback = False
        try:
            self._connection.savepoint_rollback(HANDLER)
        except Error:
            # As in Django: raise the error of the block. The transaction is lost.
            self._connection.needs_rollback = True
