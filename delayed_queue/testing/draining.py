"""For a test's own connection and transaction: deliver what is due, and assert what is left."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any
from unittest.mock import ANY

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from psycopg.pq import TransactionStatus

from delayed_queue.batch import CalledBatch
from delayed_queue.conf import get_settings
from delayed_queue.db.sql import Row, Step
from delayed_queue.db.statements import run
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import Handler, Reject, Snooze, Treatment, Verdict, judge, registry
from delayed_queue.messages import (
    MILLISECOND,
    Envelope,
    MessageState,
    StoredMessage,
    from_milliseconds,
    has_expired,
    to_milliseconds,
)
from delayed_queue.models import DeadLetter
from delayed_queue.queue.fingerprints import fingerprint
from delayed_queue.queue.store.finishing import (
    DIED,
    Leaving,
    count_step,
    finish_step,
    outcome_of,
)
from delayed_queue.queue.store.settle import (
    acknowledge_members_step,
    dead_letter_step,
    release_step,
)
from delayed_queue.retries import RetryPolicy
from delayed_queue.splits import Split
from delayed_queue.testing.queues import InMemoryQueue
from delayed_queue.testing.stores import Letter


@dataclass(frozen=True, slots=True)
class Drained:
    """The outcomes of the deliveries of one ``drain()``; each is counted once.

    ``failed``: the handler raised an error; the message was retried or dead-lettered by policy.
    ``lost``: the handler had acknowledged, released, updated or dropped the message.
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
    queue: DelayedQueue, handler: Callable[[Any], Any] | None = None, *, limit: int = 1000
) -> Drained:
    """Deliver due messages to the handler until none is left; return the outcomes.

    The default is the handler registered for the queue's name, with its own retry policy. An error
    of the handler is settled as by a worker, and is in ``errors``. A handler with ``many=True``
    receives batches. ``limit`` ends the loop for
    messages that are due again at once.
    """
    if type(limit) is not int or limit < 1:
        raise InvalidConfiguration(f"limit must be ≥ 1, not {limit!r}.")
    ends: Counter[str] = Counter()
    errors: list[Exception] = []
    deliver = _delivery(queue, handler)
    while ends.total() < limit and (found := deliver(limit - ends.total())):
        for end, error in found:
            ends[end] += 1
            if end == "failed" and isinstance(error, Exception):
                errors.append(error)
    return Drained(**ends, errors=tuple(errors))


# How a delivery ended, and the error of the handler.
_End = tuple[str, BaseException | None]


def _delivery(
    queue: DelayedQueue, function: Callable[[Any], Any] | None
) -> Callable[[int], list[_End]]:
    """Return what delivers the next messages, at most N: a batch if the handler receives such."""
    found = registry.by_queue.get(queue.name)
    if found is not None and found.many and function in (None, found.function):
        return partial(_deliver_batch, queue, found)
    return partial(_deliver_next, queue, *_chosen(queue, function))


def _deliver_next(
    queue: DelayedQueue,
    function: Callable[[Envelope], Any],
    policy: RetryPolicy,
    treatment: Treatment | None,
    limit: int,
) -> list[_End]:
    envelope = queue.try_poll()
    if envelope is None:
        return []
    if treatment is not None:
        return [deliver_treated(envelope, function, treatment, policy, queue.using)]
    return [_settle(queue, envelope, _error_of(function, envelope, queue.using), policy)]


def _chosen(
    queue: DelayedQueue, handler: Callable[[Envelope], Any] | None
) -> tuple[Callable[[Envelope], Any], RetryPolicy, Treatment | None]:
    if handler is not None:
        return handler, queue.retry_policy, None
    registered = registry.get(queue.name)
    return registered.function, registered.retry or queue.retry_policy, registered.treatment


def _deliver_batch(queue: DelayedQueue, handler: Handler, limit: int) -> list[_End]:
    """Deliver a batch, split it while calls fail, and settle its messages; return the outcomes."""
    size = min(limit, handler.batch_size or get_settings().BATCH_SIZE)
    envelopes = queue.try_poll_many(size).envelopes
    alone = [n for n, each in enumerate(envelopes) if handler.split and each.attempt > 1]
    split = Split(len(envelopes), alone)
    ends: list[_End] = []
    while (part := split.next_part()) is not None:
        members = envelopes[part.start : part.stop]
        batch = CalledBatch.of(members, replace(members[0]))
        error = _error_of(_undone(queue, handler), batch, queue.using)
        is_split = error is not None and handler.split and not isinstance(error, Snooze)
        if is_split and not split.failed(part):
            continue
        policy = handler.retry or queue.retry_policy
        for each in members:
            outcome = batch.outcomes.get(each) if error is None else error
            ends.append(_settle(queue, each, outcome, policy))
    return ends


def _undone(queue: DelayedQueue, handler: Handler) -> Callable[[Any], Any]:
    """Return the function; a failed call of a transactional one leaves no effects."""
    if not handler.transactional or isinstance(queue, InMemoryQueue):
        return handler.function
    return transaction.atomic(using=queue.using)(handler.function)


def _settle(
    queue: DelayedQueue, envelope: Envelope, error: BaseException | None, policy: RetryPolicy
) -> _End:
    settled = envelope.acknowledge() if error is None else queue.fail(envelope, error, policy)
    return _end(error) if settled else "lost", error


def deliver_treated(
    envelope: Envelope,
    function: Callable[[Envelope], Any],
    treatment: Treatment,
    policy: RetryPolicy,
    using: str,
) -> tuple[str, BaseException | None]:
    """Handle and settle a message by its treatment; return its outcome and any error."""
    is_async = treatment.manner(envelope).is_async
    call = treatment.acall if is_async else function
    error = None if has_expired(envelope) else _error_of(call, envelope, using)
    if error is None:
        members = acknowledge_members_step([envelope.lease_id], [envelope.message_id])
        step = treatment.acknowledging([envelope]) or members
        outcome = outcome_of(envelope, has_expired=has_expired(envelope))
        is_deleted = envelope.is_settled or _settle_treated(envelope, [step], outcome, using)
        return "handled" if is_deleted else "lost", None
    verdict = treatment.judge(error, envelope) or judge(error, envelope.attempt, policy)
    steps = [*treatment.recording([(envelope, error, verdict)]), _ending(envelope, verdict)]
    if not _settle_treated(envelope, steps, DIED if verdict.is_dead else None, using):
        return "lost", error
    return "failed" if verdict.counts else "snoozed", error


def _settle_treated(
    envelope: Envelope, steps: list[Step], outcome: str | None, using: str
) -> list[Row]:
    """Run the steps, and count a member that leaves its batch; return the rows of the last step."""
    if outcome is None or envelope.batch_id is None:
        return run(using, steps)[-1]
    leaving = Leaving(envelope.message_id, envelope.lease_id, outcome)
    return run(using, [count_step([leaving]), *steps, finish_step([envelope.batch_id])])[-2]


def _ending(envelope: Envelope, verdict: Verdict) -> Step:
    if verdict.delay is None:
        return dead_letter_step(
            envelope.lease_id, [envelope.message_id], verdict.reason or "rejected",
            verdict.error or None,
        )  # fmt: skip
    return release_step(
        envelope.lease_id, [envelope.message_id], verdict.delay // MILLISECOND,
        0 if verdict.counts else 1, verdict.error or None,
    )  # fmt: skip


def _end(error: BaseException | None) -> str:
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
    function: Callable[[Any], Any], argument: Envelope | CalledBatch, using: str
) -> BaseException | None:
    """Run the handler; return what it raised."""
    try:
        with undone_if_broken(using):
            if inspect.iscoroutinefunction(function):
                async_to_sync(function)(argument)
            else:
                function(argument)
    except KeyboardInterrupt:  # stops the test
        raise
    # A handler may raise anything, as in a worker.
    except BaseException as error:
        return error
    return None


@contextmanager
def undone_if_broken(using: str) -> Iterator[None]:
    """Undo the block if it breaks the open transaction, so that the test can continue.

    A worker has no transaction around a handler, so its writes before a failure stay. Here they
    stay too, unless the failure breaks the transaction.
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


def assert_offered(
    queue: DelayedQueue,
    key: str,
    payload: Any = ANY,
    *,
    schedule_at: datetime | None = None,
    headers: Mapping[str, Any] | None = None,
    state: MessageState | str | None = None,
) -> StoredMessage:
    """Return the message stored under the key, or fail when there is none or it differs.

    ``schedule_at`` is compared in whole milliseconds, as it is stored; what is left out may
    be anything.
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
    # The wanted first: ANY must compare, not a payload with an __eq__ of its own.
    if any(wanted[name] != found[name] for name in wanted):
        raise AssertionError(f"The message {key!r} in {queue!r} is {found}, not {wanted}.")
    return stored


def assert_not_offered(queue: DelayedQueue, key: str) -> None:
    """Fail when a message is stored under the key, in any state."""
    stored = queue.read(key)
    if stored is not None:
        raise AssertionError(f"The message {key!r} is in {queue!r}, {stored.state}.")


def assert_dead(queue: DelayedQueue, key: str, *, reason: str = "") -> DeadLetter:
    """Return the newest dead letter of the key whose reason starts with the text, or fail."""
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

    Those of an in-memory queue are model instances that are in no database.
    """
    if isinstance(queue, InMemoryQueue):
        with queue.store.lock:
            return [_as_model(letter) for letter in queue.store.letters_of(queue.kind)]
    return list(DeadLetter.objects.using(queue.using).filter(kind=queue.kind).order_by("id"))


def _as_model(letter: Letter) -> DeadLetter:
    row = letter.row
    return DeadLetter(
        id=letter.id, kind=row.kind, key=row.key, payload=row.payload,
        headers=None if row.headers is None else json.loads(row.headers), attempts=row.attempts,
        reason=letter.reason, first_error=row.first_error, last_error=row.last_error,
        scheduled_at_initially=from_milliseconds(row.scheduled_at_initially),
        created_at=from_milliseconds(row.created_at), died_at=from_milliseconds(letter.died_at),
        fingerprint=fingerprint(letter.reason, row.last_error), group=row.group,
    )  # fmt: skip
