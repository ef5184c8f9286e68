"""Deliver what is due on the caller's own connection, inside a test's transaction too."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections
from psycopg.pq import TransactionStatus

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.handlers import Reject, Snooze, registry
from delayed_queue.messages import Envelope
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.retries import RetryPolicy


@dataclass(frozen=True, slots=True)
class Drained:
    """The ends of the deliveries of one ``drain()``; each is counted once.

    ``failed`` raised an error, and were retried or dead-lettered by policy. ``lost`` were no
    longer the drain's to settle: the handler had acknowledged, released, updated or dropped them.
    """

    handled: int = 0
    failed: int = 0
    snoozed: int = 0
    rejected: int = 0
    lost: int = 0
    errors: tuple[Exception, ...] = ()

    @property
    def delivered(self) -> int:
        return self.handled + self.failed + self.snoozed + self.rejected + self.lost


def drain(
    queue: DelayedQueue, handler: Callable[[Envelope], Any] | None = None, *, limit: int = 1000
) -> Drained:
    """Deliver due messages to the handler until none is left; return how they ended.

    Without a handler, to the one registered for the queue's name, by its own retry policy. What the
    handler raises is settled as a worker settles it, and found in ``errors``. At most ``limit``
    deliveries, so that messages which are due again at once cannot keep it for ever.
    """
    if type(limit) is not int or limit < 1:
        raise InvalidConfiguration(f"limit must be ≥ 1, not {limit!r}.")
    function, policy = _chosen(queue, handler)
    ends: Counter[str] = Counter()
    errors: list[Exception] = []
    while ends.total() < limit and (envelope := queue.try_poll()) is not None:
        error = _error_of(function, envelope, queue.using)
        end = _end(error)
        settled = envelope.acknowledge() if error is None else queue.fail(envelope, error, policy)
        ends[end if settled else "lost"] += 1
        if error is not None and end == "failed":
            errors.append(error)
    return Drained(**ends, errors=tuple(errors))


def _chosen(
    queue: DelayedQueue, handler: Callable[[Envelope], Any] | None
) -> tuple[Callable[[Envelope], Any], RetryPolicy]:
    if handler is not None:
        return handler, queue.retry_policy
    registered = registry.get(queue.name)
    return registered.function, registered.retry or queue.retry_policy


def _end(error: Exception | None) -> str:
    match error:
        case None:
            return "handled"
        case Snooze():
            return "snoozed"
        case Reject():
            return "rejected"
        case _:
            return "failed"


def _error_of(
    function: Callable[[Envelope], Any], envelope: Envelope, using: str
) -> Exception | None:
    """Run the handler; return what it raised."""
    try:
        with mended(using):
            if inspect.iscoroutinefunction(function):
                async_to_sync(function)(envelope)
            else:
                function(envelope)
    # A handler may raise anything, and here as in a worker that is an answer.
    except Exception as error:
        return error
    return None


@contextmanager
def mended(using: str) -> Iterator[None]:
    """Let an open transaction outlive a block that breaks it.

    A worker has no transaction around a handler: what was written before a failure stays.
    Here it stays too, unless the failure broke the transaction; then the block is undone.
    """
    connection: Any = connections[using]
    if not connection.in_atomic_block:
        yield
        return
    # The connection's own: django.db.transaction renames its function in Django 6.1.
    savepoint = connection.savepoint()
    try:
        yield
    finally:
        if connection.needs_rollback or _is_broken(connection):
            connection.needs_rollback = False  # else the rollback would be refused too
            connection.savepoint_rollback(savepoint)
        else:
            connection.savepoint_commit(savepoint)


def _is_broken(connection: Any) -> bool:
    raw = connection.connection
    return raw is not None and raw.info.transaction_status is TransactionStatus.INERROR
