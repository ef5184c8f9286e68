"""Refusals: writes and claims of a worker that the database refuses (W19)."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import Error, transaction
from django.db.models import F

from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import is_unavailable, sqlstate_of, write_by_halves
from delayed_queue.handlers import storable
from delayed_queue.logs import described, first_line, log
from delayed_queue.messages import MILLISECOND, Envelope
from delayed_queue.observe import signals
from delayed_queue.queue.models import Message
from delayed_queue.queue.store.finishing import batches_of

# The worker's row, and so queuehealth, shows a refusal for N seconds.
SHOWN_SECONDS: Final = 600.0
# Refusals kept in memory: at most the latest N.
_MOST_KEPT: Final = 1_000
# Due messages that are tried after a refused claim: at most N.
_MOST_TRIED: Final = 100
# Pause of a queue whose claim is refused, in seconds. Each claim that is refused is one log line.
CLAIM_PAUSE: Final = timedelta(seconds=5)
# Retry delay where the policy has none, of a dead letter that is refused, for example.
_DEFAULT_WAIT: Final = timedelta(minutes=1)


class WriteRefused(Exception):
    """The failure of a message of which the database refuses a write."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(
            f"The database refused a write about this message (SQLSTATE {state_of(error)}): "
            f"{first_line(error)}"
        )


class Refusals:
    """Reports refused writes: once per attempt in the log, as a signal, and in the worker's row."""

    def __init__(self, sender: Any) -> None:
        self._sender = sender
        self._recent: deque[tuple[float, str, str]] = deque(maxlen=_MOST_KEPT)
        self._reported: OrderedDict[tuple[int, int], None] = OrderedDict()

    def report(self, envelope: Envelope, error: BaseException) -> None:
        """Report a write about this message; only the first of an attempt. May be called by any
        thread.
        """
        attempt = (envelope.message_id, envelope.attempt)
        if attempt in self._reported:
            return
        self._reported[attempt] = None
        while len(self._reported) > _MOST_KEPT:
            self._reported.popitem(last=False)
        self._keep(envelope.queue, error)
        signals.announce(
            signals.refused, self._sender, envelope=envelope, error=error, sqlstate=state_of(error)
        )

    def report_claim(self, queue: str, error: BaseException, **more: str) -> None:
        """Report that the queue cannot be claimed from, or the message that ``more`` names."""
        self._keep(queue, error)
        fields = {"queue": queue, **more, "sqlstate": state_of(error), "error": described(error)}
        log(logging.ERROR, "claim_refused", **fields, worker=self._sender)

    def shown(self) -> dict[str, dict[str, int]]:
        """Return the numbers of recent refusals, by queue and SQLSTATE."""
        since = time.monotonic() - SHOWN_SECONDS
        counts = Counter((queue, state) for at, queue, state in list(self._recent) if at > since)
        found: dict[str, dict[str, int]] = defaultdict(dict)
        for (queue, state), count in counts.items():
            found[queue][state] = count
        return found

    def _keep(self, queue: str, error: BaseException) -> None:
        self._recent.append((time.monotonic(), queue, state_of(error)))


def put_aside(kinds: Sequence[str], delay: timedelta, using: str) -> list[tuple[str, str, Error]]:
    """Postpone due messages whose lease the database refuses.

    A message whose postponement it refuses too becomes a dead letter. Returns the key, the new
    place and the refusal of each. If all are refused, that concerns the queue: none is changed.
    """
    rows = Message.objects.using(using).filter(
        kind__in=kinds, scheduled_at__lte=database_now(using)
    )
    due = {each.pk: each for each in rows.order_by("scheduled_at", "id")[:_MOST_TRIED]}
    found: list[tuple[int, Error]] = []
    accepted = write_by_halves(
        list(due), partial(_try_lease, using=using), lambda *each: found.append(each)
    )
    if not any(accepted):
        return []
    aside = [(due[each], _move(due[each], error, delay, using), error) for each, error in found]
    return [(message.key, place, error) for message, place, error in aside if place]


def _try_lease(ids: Sequence[int], *, using: str) -> int:
    """Return how many messages a claim could lease; roll its writes back."""
    with transaction.atomic(using=using, durable=True):
        rows = Message.objects.using(using).filter(id__in=ids)
        free = list(rows.select_for_update(skip_locked=True).values_list("id", flat=True))
        later = database_now(using) + timedelta(minutes=1)
        leased = (
            Message.objects.using(using)
            .filter(id__in=free)
            .update(lease_id=str(uuid.uuid4()), scheduled_at=later, attempts=F("attempts") + 1)
        )
        transaction.set_rollback(True, using=using)
    return leased


def _move(message: Message, error: Error, delay: timedelta, using: str) -> str:
    """Postpone or dead-letter the message; return its new place, empty if both are refused."""
    held, text = (message.lease_id, [message.pk]), storable(str(WriteRefused(error)))
    release = partial(Message.objects.release, *held, delay=delay // MILLISECOND, error=text)
    reason = f"claim refused: {state_of(error)}"
    dead_letter = partial(
        Message.objects.dead_letter, *held, reason, error=text, batches=batches_of([message])
    )
    for place, move in (("queue", release), ("dead_letter", dead_letter)):
        try:
            return place if move(using=using) else ""
        except Error as refusal:
            if is_unavailable(refusal):
                raise
    return ""


def state_of(error: BaseException) -> str:
    """Return the SQLSTATE, or the class of an error that the driver raised before sending."""
    return sqlstate_of(error) or type(error).__name__


def wait_after(envelope: Envelope, delays: tuple[timedelta, ...]) -> timedelta:
    """Return the retry delay of a message that could not become a dead letter either."""
    return delays[min(envelope.attempt, len(delays)) - 1] if delays else _DEFAULT_WAIT
