"""Repeat offers and redrives whose answer was lost, so that none is done twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from delayed_queue.db.resilience import Lost
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.store.offer import FoundOffer, Offered

T = TypeVar("T")


def find_out(
    lost: Lost,
    offers: Sequence[Offered],
    *,
    can_update: bool,
    clock: Callable[[], int | None] | None = None,
    began_at: int | None = None,
    using: str,
) -> tuple[list[FoundOffer], list[Offered]]:
    """Return what the lost try has created, and what can be offered again, its due time fixed.

    Nothing is to be done about the others: they are stored just so, or, where nothing may be
    updated, their keys were taken. An offer that is not there may be handled already once it is
    due: then raises OutcomeUnknown, whatever is known of the others. ``began_at`` is when the call
    began by a clock of the queue's own.
    """
    if began_at is not None:
        lost = replace(lost, since=began_at, until=began_at)
    now = None if clock is None else clock()
    found = Message.objects.find_offers(offers, now=now, using=using)
    created, again, unknown = [], [], 0
    for offer, row in zip(offers, found, strict=True):
        is_new = row.created_at is not None and row.created_at >= lost.since
        if _is_stored(offer, row, lost):
            if is_new and not can_update:
                created.append(row)
        elif lost.is_over and _earliest(offer, lost) > row.now:
            again.append(_fixed(offer, lost))
        elif can_update or is_new or row.created_at is None or not lost.is_over:
            unknown += 1
    if unknown:
        stored = len(offers) - len(again) - unknown
        raise lost.unknown(
            f"The connection was lost. Of {len(offers)} offered together {stored} are stored, "
            f"{len(again)} are not, and {unknown} may have been stored and handled, or not."
        )
    return created, again


def _is_stored(offer: Offered, row: FoundOffer, lost: Lost) -> bool:
    """Return whether just the offer is there; without a schedule, if it came during the call."""
    if not row.is_same or row.scheduled_at_initially is None:
        return False
    if offer.schedule_at is not None:
        return row.scheduled_at_initially == offer.schedule_at
    return lost.since <= row.scheduled_at_initially - offer.delay <= row.now


def _earliest(offer: Offered, lost: Lost) -> int:
    return lost.since + offer.delay if offer.schedule_at is None else offer.schedule_at


def _fixed(offer: Offered, lost: Lost) -> Offered:
    """Return the offer due when it was to be; a repetition does not move it."""
    if offer.schedule_at is not None:
        return offer
    return offer._replace(schedule_at=lost.until + offer.delay, delay=0)


def redrive_again(
    ids: Sequence[int], redrive: Callable[[], T], lost: Lost, *, kind: str | None = None, using: str
) -> T:
    """Redrive dead letters again, if all are still there and the lost try is over.

    Otherwise it may have put some back, and an older letter of a key is not to follow a newer one.
    """
    wanted = len(set(ids))
    if not lost.is_over or DeadLetter.objects.count_of(ids, kind=kind, using=using) < wanted:
        raise lost.unknown()
    return redrive()
