"""The life of a notification after its intake: in flight, settled, cancelled, tried again.

A dispatcher claims a message, calls ``begin``, sends outside any transaction, and writes the end
with ``finish``, ``fail`` or ``defer``, fenced by the lease of the message. Each of these is one
statement. A crash before the end leaves PROCESSING, and the queue delivers the message again when
its lease is over; the next ``begin`` takes over.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, LiteralString

from django.db import connection, transaction

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.handlers import storable
from delayed_queue.notifications import sql
from delayed_queue.notifications.models import (
    MAX_NAME_LENGTH,
    Channel,
    Delivery,
    Priority,
    Status,
    queue_name,
)

CALLBACK_QUEUE: Final = "notifications-callbacks"
SWEEP_LIMIT: Final = 1000


@dataclass(frozen=True, slots=True)
class Begun:
    """A notification in flight: what a dispatcher needs to send it, and the lease to name.

    ``provider`` is to be called now; when ``in_doubt`` it was called before, and may have sent it.
    """

    id: uuid.UUID
    lease_id: uuid.UUID
    tenant: str
    channel: str
    priority: str
    category: str
    recipient: str = field(repr=False)
    recipient_hash: bytes = field(repr=False)
    subject: str = field(repr=False)
    body: str = field(repr=False)
    html: str = field(repr=False)
    expires_at: datetime | None
    callback_url: str = field(repr=False)
    attempt: int
    was_interrupted: bool
    provider: str
    in_doubt: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a provider, as it ended. ``detail`` may hold personal data: never log it."""

    provider: str
    outcome: Delivery.Outcome
    provider_id: str = ""
    error_class: str = ""
    detail: str = field(default="", repr=False)
    duration: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """The end of an attempt: the status it leads to, why, and the calls that were made.

    ENQUEUED means again after the delay.
    """

    begun: Begun
    status: Status
    calls: Sequence[Call] = ()
    outcome: str = ""
    delay: timedelta = timedelta(0)


def queue_of(priority: str, channel: str) -> DelayedQueue:
    """Return the queue of that priority and channel."""
    return QUEUES[priority, channel]


QUEUES: Final = {
    (priority.value, channel.value): DelayedQueue(queue_name(priority, channel))
    for priority in Priority
    for channel in Channel
}
_KINDS: Final = {queue.name: queue.kind for queue in QUEUES.values()}


def begin(envelope: Envelope) -> Begun | None:
    """Begin the envelope's notification; None when there is nothing to send.

    Then it has been sent, cancelled or failed before, or this call found it too late or
    suppressed, or the envelope's lease is lost: acknowledge the message.
    """
    return begin_many([envelope]).get(envelope.key)


def begin_many(
    envelopes: Iterable[Envelope], providers: Mapping[str, str] | None = None
) -> dict[str, Begun]:
    """Begin notifications with one statement; return those to be sent, by key.

    ``providers`` are those about to be called, by key.
    """
    asked = sorted((each.key, _KINDS[each.queue], each.lease_id) for each in envelopes)
    chosen = providers or {}
    rows = fetch(
        sql.BEGIN,
        {
            "ids": [key for key, _, _ in asked],
            "kinds": [kind for _, kind, _ in asked],
            "leases": [lease for _, _, lease in asked],
            "providers": [chosen.get(key, "") for key, _, _ in asked],
        },
    )
    begun = [(Begun(*row[:-1]), Status(row[-1])) for row in rows]
    ended = [
        Settlement(each, status, (), _ENDINGS[status] + (_DOUBTED if each.in_doubt else ""))
        for each, status in begun
        if status in _ENDINGS
    ]
    if ended:
        settle_many(ended)
    return {str(each.id): each for each, status in begun if status not in _ENDINGS}


# The outcome of what waits for another attempt though its last may have been accepted.
IN_DOUBT: Final = "in doubt"
_DOUBTED: Final = f", {IN_DOUBT}"
_ENDINGS: Final = {Status.EXPIRED: "expired", Status.CANCELLED: "suppressed"}


def turn_to(begun: Begun, provider: str) -> bool:
    """Note that this provider is called next; False when the lease was lost, so call none."""
    params = {"id": begun.id, "lease_id": begun.lease_id, "provider": provider}
    return bool(fetch(sql.TURN_TO, params))


def finish(begun: Begun, calls: Sequence[Call]) -> Status | None:
    """Write that it was sent; None when the lease was lost, and the calls alone were written."""
    return settle(Settlement(begun, Status.SUCCESSFULLY_PROCESSED, calls))


def fail(begun: Begun, calls: Sequence[Call], outcome: str) -> Status | None:
    """Write that it failed for good, and why; None when the lease was lost."""
    return settle(Settlement(begun, Status.FAILED, calls, outcome))


def defer(
    begun: Begun, calls: Sequence[Call], delay: timedelta, outcome: str = ""
) -> Status | None:
    """Put it back for another attempt: ENQUEUED, then let the message come again.

    EXPIRED when that would be too late, then acknowledge the message; None when the lease was
    lost.
    """
    return settle(Settlement(begun, Status.ENQUEUED, calls, outcome, delay))


def settle(settlement: Settlement) -> Status | None:
    """Write the end of one attempt; return the status it led to, None when the lease was lost."""
    return settle_many([settlement]).get(settlement.begun.id)


def settle_many(settlements: Sequence[Settlement]) -> dict[uuid.UUID, Status]:
    """Write the ends of attempts with one statement; return the statuses they led to.

    Those not returned had lost their lease. With a ``callbackUrl`` among them, their callbacks
    are offered in the same transaction.
    """
    params = _settlement_params(settlements) | _call_params(settlements)
    called = {each.begun.id for each in settlements if each.begun.callback_url}
    if not called:
        return _statuses(fetch(sql.SETTLE, params))
    with transaction.atomic():
        statuses = _statuses(fetch(sql.SETTLE, params))
        offer_callbacks((id_, statuses[id_]) for id_ in called if id_ in statuses)
    return statuses


def _statuses(rows: list[tuple[Any, ...]]) -> dict[uuid.UUID, Status]:
    return {id_: Status(status) for id_, status in rows}


# Some of the texts are a third party's own. What the database cannot store must be seen to here:
# one of them would keep back the ends of all that are written with it.


def _settlement_params(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    last = [each.calls[-1] if each.calls else None for each in settlements]
    return {
        "ids": [each.begun.id for each in settlements],
        "leases": [each.begun.lease_id for each in settlements],
        "statuses": [each.status.value for each in settlements],
        "delays": [each.delay for each in settlements],
        "providers": [
            call.provider if call else _doubted(each.begun)
            for each, call in zip(settlements, last, strict=True)
        ],
        "provider_ids": [storable(call.provider_id) if call else "" for call in last],
        "outcomes": [storable(each.outcome) for each in settlements],
        "error_classes": [_name_of_error(call) if call else "" for call in last],
    }


def _doubted(begun: Begun) -> str:
    """Return who may have the message, which is not forgotten when an attempt calls nobody."""
    return begun.provider if begun.in_doubt else ""


def _call_params(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    calls = [(each.begun, call) for each in settlements for call in each.calls]
    return {
        "call_ids": [begun.id for begun, _ in calls],
        "call_attempts": [begun.attempt for begun, _ in calls],
        "call_providers": [call.provider for _, call in calls],
        "call_provider_ids": [storable(call.provider_id) for _, call in calls],
        "call_outcomes": [call.outcome.value for _, call in calls],
        "call_error_classes": [_name_of_error(call) for _, call in calls],
        "call_details": [storable(call.detail) for _, call in calls],
        "call_durations": [_milliseconds(call.duration) for _, call in calls],
    }


def _name_of_error(call: Call) -> str:
    return storable(call.error_class)[:MAX_NAME_LENGTH]


def _milliseconds(duration: timedelta | None) -> int | None:
    return None if duration is None else duration // timedelta(milliseconds=1)


def offer_callbacks(ended: Iterable[tuple[uuid.UUID, str]]) -> None:
    """Offer a message for each final status, to be posted to the ``callbackUrl``.

    In the transaction of the change itself, so that no end goes untold.
    """
    messages = [
        ScheduledMessage(f"{id_}:{status}", {"id": str(id_), "status": str(status)})
        for id_, status in ended
        if status != Status.ENQUEUED
    ]
    _CALLBACKS.offer_batch(messages)


_CALLBACKS: Final = DelayedQueue(CALLBACK_QUEUE)


@transaction.atomic
def cancel(id_: uuid.UUID, reason: str = "cancelled") -> bool:
    """Cancel a notification that waits, and drop its message; False in any other state."""
    rows = fetch(sql.CANCEL, {"id": id_, "reason": reason})
    for priority, channel, callback_url in rows:
        queue_of(priority, channel).drop_message(str(id_))
        if callback_url:
            offer_callbacks([(id_, Status.CANCELLED)])
    return bool(rows)


@transaction.atomic
def retry(id_: uuid.UUID, *, even_in_doubt: bool = True) -> bool:
    """Put a failed notification back into its queue; False in any other state, or too late.

    One that is in doubt may be sent twice by that: where many are chosen at a time, say whether
    those are meant.
    """
    rows = fetch(sql.RETRY, {"id": id_, "even_in_doubt": even_in_doubt})
    for priority, channel in rows:
        queue_of(priority, channel).offer_or_update(str(id_), None)
    return bool(rows)


@transaction.atomic
def expire_overdue(limit: int = SWEEP_LIMIT) -> int:
    """Mark waiting notifications whose time is over; return how many, at most the limit."""
    return _tell(fetch(sql.EXPIRE, {"limit": limit}))


@transaction.atomic
def fail_dead(limit: int = SWEEP_LIMIT) -> int:
    """Fail open notifications whose message became a dead letter; return how many."""
    kinds = [queue.kind for queue in QUEUES.values()]
    return sum(_tell(fetch(sql.FAIL_DEAD, {"kind": kind, "limit": limit})) for kind in kinds)


def fail_lost(limit: int = SWEEP_LIMIT) -> int:
    """Fail open notifications that have no message, so that nobody would send them.

    Goes through all that are open, ``limit`` with each statement; returns how many it failed.
    """
    return sum(
        _fail_lost(lost)
        for status in (Status.ENQUEUED, Status.PROCESSING)
        for lost in _without_message(status, limit)
        if lost
    )


def _without_message(status: Status, limit: int) -> Iterator[list[uuid.UUID]]:
    after = uuid.UUID(int=0)
    while True:
        params = {"status": status.value, "after": after, "limit": limit}
        rows = fetch(sql.WITHOUT_MESSAGE, params)
        yield [id_ for id_, is_lost in rows if is_lost]
        if len(rows) < limit:
            return
        after = rows[-1][0]


@transaction.atomic
def _fail_lost(ids: list[uuid.UUID]) -> int:
    return _tell(fetch(sql.FAIL_LOST, {"ids": ids}))


def _tell(ended: list[tuple[Any, ...]]) -> int:
    offer_callbacks((id_, status) for id_, status, callback_url in ended if callback_url)
    return len(ended)


def fetch(statement: LiteralString, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run a statement and return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def execute(statement: LiteralString, params: Mapping[str, Any]) -> int:
    """Run a statement, and return how many rows it changed."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return int(cursor.rowcount)
