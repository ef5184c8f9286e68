"""The base of every part of a queue: its configuration, its clock, its transactions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction

from delayed_queue.codecs import Codec, check_kind, codec_named, kind_of
from delayed_queue.conf import check_interval, check_lease, get_settings
from delayed_queue.db.resilience import Lost, announce, check_vendor, drop_if_lost, never, repeat
from delayed_queue.db.statements import run
from delayed_queue.db.wakeups import channel_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MILLISECOND, check_claim, to_milliseconds
from delayed_queue.queue.models import DeadLetter, Limit, Message
from delayed_queue.queue.store.claim import HANDLER
from delayed_queue.queue.store.groups import GroupRow
from delayed_queue.queue.store.limits import RulesRow
from delayed_queue.retries import RetryPolicy

T = TypeVar("T")


class QueueBase:
    """The configuration of a queue, and the five things the in-memory queue does otherwise."""

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
    ) -> None:
        defaults = get_settings()
        self._messages = Message.objects
        self._letters = DeadLetter.objects
        self._limits = Limit.objects
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

    # What the in-memory queue replaces

    def _now(self) -> int | None:
        """Return the clock's instant; None leaves it to the database."""
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

    def _transaction(self, *, durable: bool = False) -> Any:
        if durable or not connections[self.using].in_atomic_block:
            drop_if_lost(self.using)
        return transaction.atomic(using=self.using, durable=durable)

    def _handler_block(self) -> Any:
        """Return a context manager that undoes what its block wrote when it raises."""
        return HandlerBlock(self.using)

    def _check_effects(self) -> None:
        """Commit, or raise now what would undo a handler's effects, while it can be counted.

        That is a deferred constraint, as Django's foreign keys are, which the commit checks; or
        a rollback that was asked for inside, which the end of an atomic block does in silence. The
        commit at that end finds nothing to do. A test's transaction around it goes on.
        """
        is_outermost = len(connections[self.using].atomic_blocks) == 1
        behind = "COMMIT" if is_outermost else "SET CONSTRAINTS ALL DEFERRED"
        run(
            self.using, [("SET CONSTRAINTS ALL IMMEDIATE", {}), (behind, {})], savepoint=False
        )  # fmt: skip

    def _is_soon(self, schedule: int | None, delay: int) -> bool:
        """Return whether a sleeping poller could be late for the message unless woken."""
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
        """Return what holds the queue as a whole back; None where nothing does."""
        return self._repeat(
            lambda: self._limits.rules(self.kind, now=self._now(), using=self.using)
        )

    def _read_groups(self, limit: int) -> list[GroupRow]:
        """Return the first groups that have messages, as a claim would find them."""
        return self._repeat(
            lambda: self._messages.groups(self.kind, limit, now=self._now(), using=self.using)
        )

    @property
    def _channel(self) -> str:
        """The channel on which its messages are announced."""
        return channel_of(self.kind)

    def _wake(self) -> None:
        """Wake sleeping pollers; outside a transaction, in one of its own."""
        if get_settings().NOTIFY:
            announce(self.using, lambda: self._messages.notify(self._channel, using=self.using))


def nothing(answer: object) -> bool:
    """Doubt answers that say nothing was there: an earlier, lost try may have taken it."""
    return not answer


class HandlerBlock:
    """Undo what the block wrote on the connection if it raises, and its ``on_commit`` hooks.

    As Django's inner atomic block does, with two round trips less: the statement that took
    the message has set the savepoint, and the COMMIT that follows releases it.
    """

    def __init__(self, using: str) -> None:
        self._connection: Any = connections[using]

    def __enter__(self) -> None:
        # By this list Django knows which on_commit hooks a rollback takes along.
        self._connection.savepoint_ids.append(HANDLER)

    def __exit__(self, exc_type: type[BaseException] | None, *rest: object) -> None:
        self._connection.savepoint_ids.pop()
        if exc_type is None or self._connection.closed_in_transaction:
            return
        self._connection.needs_rollback = False
        try:
            self._connection.savepoint_rollback(HANDLER)
        except Error:
            # As Django does: the error of the block tells more. The transaction is lost.
            self._connection.needs_rollback = True
