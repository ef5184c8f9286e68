"""Deliver due messages in a test's own transaction, and assert what a queue holds."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from asgiref.sync import async_to_sync
from django.db import connections
from psycopg.pq import TransactionStatus

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import Reject, Snooze, registry
from delayed_queue.messages import (
    Envelope,
    MessageState,
    StoredMessage,
    from_milliseconds,
    to_milliseconds,
)
from delayed_queue.models import DeadLetter
from delayed_queue.queue.fingerprints import fingerprint
from delayed_queue.retries import RetryPolicy
from delayed_queue.testing.queues import InMemoryQueue
from delayed_queue.testing.stores import Letter


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcomes of the deliveries of one ``drain()``.

    ``failed`` raised an error and were retried or dead-lettered by policy. ``lost`` were settled,
    updated or dropped by the handler itself.
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
    """Deliver due messages to the handler until none is left; return the outcomes.

    The default is the handler registered for the queue's name, with its retry policy. Errors are
    settled as a worker settles them, and returned in ``errors``. ``limit`` bounds the deliveries:
    a message may be due again at once.
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
    # A handler may raise anything; a worker treats it the same way.
    except Exception as error:
        return error
    return None


@contextmanager
def mended(using: str) -> Iterator[None]:
    """Keep an open transaction usable after a block that breaks it.

    A worker has no transaction around a handler, so writes before a failure stay. They stay here
    too, unless the failure broke the transaction; then the block is rolled back.
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


# Assertions on what a queue holds; they lease nothing


class _Anything:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "<anything>"


ANYTHING: Final = _Anything()


def assert_offered(
    queue: DelayedQueue,
    key: str,
    payload: Any = ANYTHING,
    *,
    schedule_at: datetime | None = None,
    headers: Mapping[str, Any] | None = None,
    state: MessageState | str | None = None,
) -> StoredMessage:
    """Return the message stored under the key; fail if it is missing or differs.

    Arguments that are left out may be anything. ``schedule_at`` is compared in milliseconds.
    """
    stored = queue.read(key)
    if stored is None:
        raise AssertionError(f"No message {key!r} is in {queue!r}.")
    found: dict[str, Any] = {"payload": stored.payload}
    wanted: dict[str, Any] = {"payload": payload}
    if schedule_at is not None:
        found["schedule_at"] = stored.scheduled_at_initially
        wanted["schedule_at"] = from_milliseconds(to_milliseconds(schedule_at))
    if headers is not None:
        found["headers"], wanted["headers"] = stored.headers, dict(headers)
    if state is not None:
        found["state"], wanted["state"] = str(stored.state), str(state)
    # The wanted value first: ANYTHING decides, not the payload's own __eq__.
    if any(wanted[name] != found[name] for name in wanted):
        raise AssertionError(f"The message {key!r} in {queue!r} is {found}, not {wanted}.")
    return stored


def assert_not_offered(queue: DelayedQueue, key: str) -> None:
    """Fail when a message is stored under the key, in any state."""
    stored = queue.read(key)
    if stored is not None:
        raise AssertionError(f"The message {key!r} is in {queue!r}, {stored.state}.")


def assert_dead(queue: DelayedQueue, key: str, *, reason: str = "") -> DeadLetter:
    """Return the newest dead letter of the key whose reason starts with ``reason``, or fail."""
    letters = [letter for letter in dead_letters(queue) if letter.key == key]
    for letter in reversed(letters):
        if letter.reason.startswith(reason):
            return letter
    others = ", ".join(repr(letter.reason) for letter in letters) or "none"
    raise AssertionError(
        f"No dead letter {key!r} in {queue!r} has a reason like {reason!r}; found: {others}."
    )


def dead_letters(queue: DelayedQueue) -> list[DeadLetter]:
    """Return the queue's dead letters in the order of their deaths.

    Those of an in-memory queue are model instances without a database.
    """
    if isinstance(queue, InMemoryQueue):
        with queue.store.lock:
            return [_as_model(letter) for letter in queue.store.letters_of(queue.kind)]
    return list(DeadLetter.objects.using(queue.using).filter(kind=queue.kind).order_by("id"))


def _as_model(letter: Letter) -> DeadLetter:
    fields = asdict(letter)
    fields["headers"] = None if letter.headers is None else json.loads(letter.headers)
    for name in ("scheduled_at_initially", "created_at", "died_at"):
        fields[name] = from_milliseconds(fields[name])
    return DeadLetter(**fields, fingerprint=fingerprint(letter.reason, letter.last_error))
