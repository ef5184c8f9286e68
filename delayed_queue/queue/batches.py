"""Batches: a message that is offered when a set of others has finished."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Final, Self

from asgiref.sync import sync_to_async

from delayed_queue.db.resilience import never
from delayed_queue.exceptions import BatchClosed, InvalidConfiguration, InvalidMessage
from delayed_queue.messages import Envelope, ScheduledMessage
from delayed_queue.queue.base import P, QueueBase, T, awaited, nothing
from delayed_queue.queue.offering import Offering, prepared_chunks
from delayed_queue.queue.store.batches import BatchStore
from delayed_queue.queue.store.finishing import Joining
from delayed_queue.queue.store.offer import Columns, Offered

if TYPE_CHECKING:
    from types import TracebackType

# A dead letter counts as finished, or the batch waits for it.
ON_DEAD: Final = ("then", "wait")


class _Members:
    """The offers of a queue's store, into a batch."""

    def __init__(self, batches: BatchStore, joining: Joining) -> None:
        self._batches = batches
        self._joining = joining

    def offer(
        self,
        kind: str,
        key: str,
        payload: bytes,
        latest: int | None = None,
        **options: Any,
    ) -> bool | None:
        if latest is not None:
            raise InvalidMessage("latest is not possible for a member of a batch.")
        names = ("schedule_at", "headers", "group", "expires_at")
        offers = Columns([key], [payload], *([options.pop(each)] for each in names))
        return self.offer_batch(kind, offers, **options).get(key)

    def offer_batch(self, kind: str, offers: Columns, **options: Any) -> dict[str, bool]:
        written = self._batches.join(self._joining, kind, offers, **options)
        if written is None:
            raise BatchClosed(
                f"The batch {self._joining.batch_id} is closed or unknown; nothing was offered."
            )
        return written


class OpenBatch:
    """A batch to which this process adds members, and which it closes.

    As a context manager it is closed at the end of the block. If the block raises inside a
    transaction, the batch and its members are rolled back; outside of one the batch stays open.
    """

    def __init__(self, queue: Offering, joining: Joining | Callable[[], Joining]) -> None:
        self._queue = queue
        self._joining = joining

    def __repr__(self) -> str:
        number = self._joining.batch_id if isinstance(self._joining, Joining) else "unopened"
        return f"<{type(self).__name__} {number} of {self._queue.kind}>"

    @property
    def id(self) -> int:
        """The id by which other producers join the batch: ``queue.join_batch(id)``."""
        return self.joining().batch_id

    def members_of(self, queue: Offering) -> Offering:
        """Return the queue, whose offers become members."""
        members: Any = copy(queue)
        members._messages = _Members(queue._batches, self.joining())
        return members  # type: ignore[no-any-return]

    def joining(self) -> Joining:
        """Open the batch if it is not; return the right to add members to it."""
        if not isinstance(self._joining, Joining):
            self._joining = self._joining()  # opens it
        return self._joining

    def close(self) -> bool:
        """Add no more members from outside; return whether the batch was open.

        Waits for producers whose transactions have added members. Without members left, ``then`` is
        offered at once.
        """
        return self._call(self._queue._batches.close, never, now=self._queue._now())

    def cancel(self) -> bool:
        """Never offer ``then``; members stay as ordinary messages. False if there is no batch."""
        return self._call(self._queue._batches.cancel, nothing)

    def _call(self, method: Callable[..., T], doubt: Callable[[T], bool], **options: Any) -> T:
        call = partial(method, self.id, using=self._queue.using, **options)
        return self._queue._repeat(call, doubt=doubt)

    @contextmanager
    def _opened(self) -> Iterator[Self]:
        queue = self._queue
        with queue._transaction() if queue._is_in_transaction() else nullcontext():
            self.joining()
            yield self
            self.close()

    def __enter__(self) -> Self:
        self._block = self._opened()
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    aclose = awaited(close)
    acancel = awaited(cancel)

    async def __aenter__(self) -> Self:
        return await sync_to_async(self.__enter__)()

    async def __aexit__(self, *exc_info: Any) -> None:
        await sync_to_async(self.__exit__)(*exc_info)


def _delegated(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[MessageBatch, P], T]:
    """Return the method, called on the queue whose offers become members."""

    @functools.wraps(method)
    def call(self: MessageBatch, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: Callable[P, T] = getattr(self.members_of(self._queue), method.__name__)
        return found(*args, **kwargs)

    return call


class MessageBatch(OpenBatch):
    """A batch of messages of one queue."""

    offer_or_update = _delegated(Offering.offer_or_update)
    offer_if_not_exists = _delegated(Offering.offer_if_not_exists)
    offer_batch = _delegated(Offering.offer_batch)
    aoffer_or_update = awaited(offer_or_update)
    aoffer_if_not_exists = awaited(offer_if_not_exists)
    aoffer_batch = awaited(offer_batch)


class Batching(Offering):
    """The batches of a queue."""

    def batch(
        self,
        then: ScheduledMessage,
        *,
        then_queue: QueueBase | None = None,
        on_dead: str = "then",
    ) -> MessageBatch:
        """Return a batch; ``then`` is offered when all of its members have finished.

        ``then`` goes to ``then_queue``, by default this queue, with the counts in its header
        ``batch``. With ``on_dead="wait"`` a dead letter has not finished until it is redriven or
        deleted. Use it in a ``with`` block, or ``close()`` it.
        """
        target = self if then_queue is None else then_queue
        if on_dead not in ON_DEAD:
            raise InvalidConfiguration(
                f"on_dead must be one of {', '.join(ON_DEAD)}, not {on_dead!r}."
            )
        if not isinstance(target, QueueBase) or target._database != self._database:
            raise InvalidConfiguration(
                f"then_queue must be a queue in the database of {self!r}, not {then_queue!r}."
            )
        opens = partial(
            self._open, _prepared(target, then), waits=on_dead == "wait", now=self._now()
        )
        return MessageBatch(self, opens)

    def _open(self, then: Offered, **options: Any) -> Joining:
        # A repetition opens the same batch.
        batch_id = self._repeat(partial(self._batches.next_id, using=self.using))
        opens = partial(self._batches.open, batch_id, self.kind, then, using=self.using, **options)
        return Joining(self._repeat(opens, doubt=never))

    def join_batch(self, batch_id: int) -> MessageBatch:
        """Return an open batch by its id, to add members from another place."""
        return MessageBatch(self, joining_of_id(batch_id))

    def batch_of(self, envelope: Envelope) -> MessageBatch:
        """Return the batch of a leased member, which may add members to it."""
        return MessageBatch(self, joining_of_member(envelope))


def joining_of_id(batch_id: int) -> Joining:
    """Return the right to add members to an open batch."""
    if type(batch_id) is not int or not 0 < batch_id < 2**63:
        raise InvalidMessage(f"batch_id must be the id of a batch, not {batch_id!r}.")
    return Joining(batch_id)


def joining_of_member(envelope: Envelope) -> Joining:
    """Return the right of a leased member to add others to its batch."""
    return Joining(
        envelope.batch_id or 0, envelope.message_id, envelope.lease_id,
        is_inside=envelope.is_consumed,
    )  # fmt: skip


def _prepared(queue: QueueBase, then: ScheduledMessage) -> Offered:
    """Return ``then`` as it is stored, or refuse it."""
    if not isinstance(then, ScheduledMessage):
        raise InvalidMessage(f"then must be a ScheduledMessage, not {type(then).__name__}.")
    if not then.can_update:
        raise InvalidMessage("then replaces a message of its key: can_update must be True.")
    try:
        ((prepared,),) = prepared_chunks(queue.name, queue.codec, [then], queue._true_now)
    except InvalidMessage as error:
        raise type(error)(f"then: {error}") from error
    return prepared.offered(queue.kind)
