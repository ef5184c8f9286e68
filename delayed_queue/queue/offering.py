"""Offer messages, one by one and in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, starmap
from typing import Any, Final, NamedTuple, TypeVar

from delayed_queue.codecs import Codec, encode
from delayed_queue.conf import get_settings
from delayed_queue.db.resilience import Lost, never
from delayed_queue.durations import Duration
from delayed_queue.exceptions import InvalidMessage, OutcomeUnknown
from delayed_queue.handlers import begin_replacing
from delayed_queue.instruments import headers_for
from delayed_queue.messages import (
    MILLISECOND,
    OfferOutcome,
    ScheduledMessage,
    check_delay,
    check_expiry,
    check_group,
    check_key,
    check_latest,
    check_schedule,
    encode_headers,
)
from delayed_queue.queue.base import QueueBase
from delayed_queue.queue.models import DeadLetter, Message
from delayed_queue.queue.store.offer import Columns, FoundOffer, Offered

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
    """Return what the lost try has created, and what can be offered again, with fixed due times.

    The other offers are stored, or their keys were taken where nothing may be updated. Raises
    OutcomeUnknown if an offer is not stored and was due, because it may have been handled.
    ``began_at`` is the start of the call by the queue's own clock.
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
            f"The connection was lost. {len(offers)} were offered together: "
            f"{stored} are stored, {len(again)} are not, and {unknown} may have "
            "been stored and handled."
        )
    return created, again


def _is_stored(offer: Offered, row: FoundOffer, lost: Lost) -> bool:
    """True if the same offer is stored; without a schedule, only if it was during the call."""
    if not row.is_same or row.scheduled_at_initially is None:
        return False
    if offer.schedule_at is not None:
        return row.scheduled_at_initially == offer.schedule_at
    return lost.since <= row.scheduled_at_initially - offer.delay <= row.now


def _earliest(offer: Offered, lost: Lost) -> int:
    return lost.since + offer.delay if offer.schedule_at is None else offer.schedule_at


def _fixed(offer: Offered, lost: Lost) -> Offered:
    """Return the offer with its times fixed, so that a retry does not move them."""
    if offer.expires_in is not None:
        offer = offer._replace(expires_at=lost.until + offer.expires_in, expires_in=None)
    if offer.schedule_at is not None:
        return offer
    return offer._replace(schedule_at=lost.until + offer.delay, delay=0)


def redrive_again(
    ids: Sequence[int], redrive: Callable[[], T], lost: Lost, *, kind: str | None = None, using: str
) -> T:
    """Redrive dead letters again if all still exist and the lost try is over.

    Otherwise it may have offered some, and an older letter of a key must not follow a newer one.
    """
    wanted = len(set(ids))
    if not lost.is_over or DeadLetter.objects.count_of(ids, kind=kind, using=using) < wanted:
        raise lost.unknown()
    return redrive()


CHUNK: Final = 1000


class PreparedOffer(NamedTuple):
    """A validated message as the database takes it, and its position in the input."""

    position: int
    key: str
    payload: bytes
    schedule_at: int | None
    headers: str | None
    can_update: bool
    group: str | None
    expires_at: int | None

    def offered(self, kind: str) -> Offered:
        return Offered(
            self.key, kind, self.payload, self.schedule_at, 0, self.headers, self.group,
            self.expires_at,
        )  # fmt: skip


class Offering(QueueBase):
    """The producer's side of a queue."""

    def offer_or_update(
        self,
        key: str,
        payload: Any,
        schedule_at: datetime | None = None,
        *,
        delay: Duration | None = None,
        headers: Mapping[str, Any] | None = None,
        group: str | None = None,
        expires_at: datetime | None = None,
        expires_in: Duration | None = None,
        latest: Duration | None = None,
    ) -> OfferOutcome:
        """Store the message, or replace payload and schedule of the one stored under its key.

        An update ends a lease on the stored message and resets its attempts. The same payload
        bytes, first schedule and expiry are IGNORED, even while leased. Without ``schedule_at`` or
        ``delay`` the message is due at once; ``delay`` and ``expires_in`` count from the database's
        now. The limits of ``group`` apply. No handler starts the message after its expiry.

        With ``latest``, repeated offers postpone the message at most until ``latest`` after the
        first of them (debounce). A message that was delivered starts anew.
        """
        bound = None
        if latest is not None:
            delay, bound = check_latest(delay, latest, schedule_at)
        return self._offer(
            key, payload, schedule_at, delay, headers, group, expires_at, expires_in, bound,
            can_update=True,
        )  # fmt: skip

    def offer_if_not_exists(
        self,
        key: str,
        payload: Any,
        schedule_at: datetime | None = None,
        *,
        delay: Duration | None = None,
        headers: Mapping[str, Any] | None = None,
        group: str | None = None,
        expires_at: datetime | None = None,
        expires_in: Duration | None = None,
    ) -> OfferOutcome:
        """Store the message unless its key exists; then it is IGNORED."""
        return self._offer(
            key, payload, schedule_at, delay, headers, group, expires_at, expires_in, None,
            can_update=False,
        )  # fmt: skip

    def _offer(
        self,
        key: str,
        payload: Any,
        schedule_at: datetime | None,
        delay: Duration | None,
        headers: Mapping[str, Any] | None,
        group: str | None,
        expires_at: datetime | None,
        expires_in: Duration | None,
        latest: timedelta | None,
        *,
        can_update: bool,
    ) -> OfferOutcome:
        schedule, wait = self._times(schedule_at, delay)
        is_announced = get_settings().NOTIFY and self._is_soon(schedule, wait)
        check_key(key)
        check_group(group)
        at = life = None
        if expires_at is not None or expires_in is not None:  # most messages have none
            at, life = check_expiry(
                expires_at, expires_in, schedule=schedule, delay=wait, clock=self._true_now
            )
        own = begin_replacing(self.name, (key,)) if can_update else None
        data, sealed = encode(self.codec, payload), headers_of(self.name, headers)
        now, channel = self._now(), self._channel if is_announced else None
        offer = partial(
            self._messages.offer, self.kind, key, data, can_update=can_update,
            schedule_at=schedule, delay=wait, headers=sealed, group=group, expires_at=at,
            expires_in=life, now=now, channel=channel, using=self.using,
        )  # fmt: skip

        def truth(lost: Lost) -> bool | None:
            offers = [Offered(key, self.kind, data, schedule, wait, sealed, group, at, life)]
            return self._offer_again(lost, offers, now, channel, can_update=can_update).get(key)

        if latest is None:
            created = self._repeat(offer, truth=truth)
        else:  # a repetition is one more offer of the same window
            created = self._repeat(partial(offer, latest=latest // MILLISECOND), doubt=never)
        if own is not None and created is None:
            own.is_replaced = False
        return outcome_of(created)

    def _times(
        self, schedule_at: datetime | None, delay: Duration | None
    ) -> tuple[int | None, int]:
        if schedule_at is not None and delay is not None:
            raise InvalidMessage("Give schedule_at or delay, not both.")
        return check_schedule(schedule_at), check_delay(delay, self._local_now()) or 0

    def _offer_again(
        self,
        lost: Lost,
        offers: Sequence[Offered],
        now: int | None,
        channel: str | None,
        *,
        can_update: bool,
    ) -> dict[str, bool]:
        """Offer what the lost try has not; return the flags of all that are written."""
        created, again = find_out(
            lost, offers, can_update=can_update, clock=self._now, began_at=now, using=self.using
        )
        written = {row.key: True for row in created}
        if again:
            columns = map(list, zip(*again, strict=True))
            keys, _, payloads, schedules, _, headers, groups, expiries, _ = columns
            written |= self._messages.offer_batch(
                self.kind, Columns(keys, payloads, schedules, headers, groups, expiries),
                can_update=can_update, now=self._now(), channel=channel, using=self.using,
            )  # fmt: skip
        return written

    def offer_batch(self, messages: Iterable[ScheduledMessage]) -> list[OfferOutcome]:
        """Offer many messages with one statement per 1000; return their outcomes in order.

        Each chunk commits by itself unless a transaction is open. A sequence is validated before
        anything is sent; any other iterable chunk by chunk.
        """
        outcomes: list[OfferOutcome] = []
        for chunk in prepared_chunks(self.name, self.codec, messages, self._true_now):
            try:
                outcomes.extend(self._offer_chunk(chunk))
            except OutcomeUnknown as error:
                if not outcomes:
                    raise
                raise OutcomeUnknown(
                    f"{error} The first {len(outcomes)} of the batch are stored."
                ) from error.__cause__
        return outcomes

    def _offer_chunk(self, chunk: list[PreparedOffer]) -> list[OfferOutcome]:
        outcomes = [OfferOutcome.CREATED] * len(chunk)
        channel = self._channel if self._is_announced(chunk) else None
        groups = list(rounds(chunk))
        for group in groups:
            created = self._offer_group(group, channel if group is groups[-1] else None)
            if len(created) == len(group) and all(created.values()):
                continue
            for offer in group:
                outcomes[offer.position] = outcome_of(created.get(offer.key))
        return outcomes

    def _is_announced(self, chunk: list[PreparedOffer]) -> bool:
        schedules = [offer.schedule_at for offer in chunk]
        earliest = min((each for each in schedules if each is not None), default=None)
        return get_settings().NOTIFY and self._is_soon(None if None in schedules else earliest, 0)

    def _offer_group(self, group: list[PreparedOffer], channel: str | None) -> dict[str, bool]:
        """Offer messages of distinct keys; wake the channel's listeners in the same round trip."""
        columns = map(list, zip(*group, strict=True))
        _, keys, payloads, schedules, headers, (can_update, *_), groups, expiries = columns
        now = self._now()
        own = begin_replacing(self.name, keys) if can_update else None
        offer = partial(
            self._messages.offer_batch, self.kind,
            Columns(keys, payloads, schedules, headers, groups, expiries), can_update=can_update,
            now=now, channel=channel, using=self.using,
        )  # fmt: skip

        def truth(lost: Lost) -> dict[str, bool]:
            offers = [each.offered(self.kind) for each in group]
            return self._offer_again(lost, offers, now, channel, can_update=can_update)

        created = self._repeat(offer, truth=truth)
        if own is not None and own.key not in created:
            own.is_replaced = False
        return created


def headers_of(queue: str, headers: Mapping[str, Any] | None) -> str | None:
    """Return the headers to store, with those of instruments."""
    given = headers_for(queue, headers) if get_settings().INSTRUMENTS else headers
    return encode_headers(given)


def prepared_chunks(
    queue: str,
    codec: Codec,
    messages: Iterable[ScheduledMessage],
    clock: Callable[[], datetime],
) -> Iterable[list[PreparedOffer]]:
    """Validate and encode in chunks: a sequence at once, a stream as it is read."""
    prepared = partial(_prepared, queue, codec, clock, is_watched=bool(get_settings().INSTRUMENTS))
    chunks = (list(starmap(prepared, enumerate(chunk))) for chunk in _chunks(messages))
    return list(chunks) if isinstance(messages, Sequence) else chunks


def _chunks(messages: Iterable[ScheduledMessage]) -> Iterator[list[ScheduledMessage]]:
    remaining = iter(messages)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def _prepared(
    queue: str,
    codec: Codec,
    clock: Callable[[], datetime],
    position: int,
    message: Any,
    *,
    is_watched: bool,
) -> PreparedOffer:
    if not isinstance(message, ScheduledMessage):
        raise InvalidMessage(f"A batch consists of ScheduledMessage, not {type(message).__name__}.")
    at, headers, group = message.schedule_at, message.headers, message.group
    schedule = None if at is None else check_schedule(at)
    # tuple.__new__ is faster, and a batch has a thousand of these.
    fields = (
        position, check_key(message.key), encode(codec, message.payload), schedule,
        None if headers is None and not is_watched else headers_of(queue, headers),
        bool(message.can_update), None if group is None else check_group(group),
        None if message.expires_at is None else _expiry(message.expires_at, schedule, clock),
    )  # fmt: skip
    return tuple.__new__(PreparedOffer, fields)


def _expiry(
    expires_at: datetime, schedule: int | None, clock: Callable[[], datetime]
) -> int | None:
    return check_expiry(expires_at, None, schedule=schedule, delay=0, clock=clock)[0]


def rounds(offers: list[PreparedOffer]) -> Iterator[list[PreparedOffer]]:
    """Split into groups, one statement each, keeping the order of equal keys.

    A group has distinct keys, because a statement cannot write a row twice, and all of it may
    update or nothing. A repeated key comes in a later group, as if offered one by one (Q12).
    """
    are_alike = len({each.can_update for each in offers}) == 1
    if are_alike and len({each.key for each in offers}) == len(offers):
        yield offers
        return
    seen: dict[str, int] = {}
    groups: dict[tuple[int, bool], list[PreparedOffer]] = {}
    for offer in offers:
        turn = seen[offer.key] = seen.get(offer.key, -1) + 1
        groups.setdefault((turn, offer.can_update), []).append(offer)
    for group in sorted(groups):
        yield groups[group]


def outcome_of(created: bool | None) -> OfferOutcome:
    """Return the outcome for a row's flag; None stands for no row."""
    if created is None:
        return OfferOutcome.IGNORED
    return OfferOutcome.CREATED if created else OfferOutcome.UPDATED
