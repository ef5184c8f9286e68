"""From messages to the arrays of a batch offer, and from returned rows to outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from delayed_queue.codecs import Codec, encode
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.messages import (
    OfferOutcome,
    ScheduledMessage,
    check_key,
    check_schedule,
    encode_headers,
)
from delayed_queue.observe.instruments import headers_for

CHUNK: Final = 1000


class PreparedOffer(NamedTuple):
    """A validated message as the database takes it, and its place in the input."""

    position: int
    key: str
    payload: bytes
    schedule_at: int | None
    headers: str | None
    can_update: bool


def prepared_chunks(
    queue: str, codec: Codec, messages: Iterable[ScheduledMessage]
) -> Iterable[list[PreparedOffer]]:
    """Validate, encode and cut into chunks: a sequence at once, a stream as it is read."""
    chunks = (
        [_prepared(queue, codec, position, message) for position, message in enumerate(chunk)]
        for chunk in _chunks(messages)
    )
    return list(chunks) if isinstance(messages, Sequence) else chunks


def _chunks(messages: Iterable[ScheduledMessage]) -> Iterator[list[ScheduledMessage]]:
    remaining = iter(messages)
    while chunk := list(islice(remaining, CHUNK)):
        yield chunk


def _prepared(queue: str, codec: Codec, position: int, message: Any) -> PreparedOffer:
    if not isinstance(message, ScheduledMessage):
        raise InvalidMessage(f"A batch is of ScheduledMessage, not {type(message).__name__}.")
    return PreparedOffer(
        position,
        check_key(message.key),
        encode(codec, message.payload),
        check_schedule(message.schedule_at),
        encode_headers(headers_for(queue, message.headers)),
        bool(message.can_update),
    )


def rounds(offers: list[PreparedOffer]) -> Iterator[list[PreparedOffer]]:
    """Split into groups that one statement each can take, keeping the order of equal keys.

    Within a group keys are distinct (a statement cannot touch a row twice) and all may update
    or none may. A repeated key falls into a later group, so it meets what the earlier one
    wrote, as if offered one by one (Q12).
    """
    seen: dict[str, int] = {}
    groups: dict[tuple[int, bool], list[PreparedOffer]] = {}
    for offer in offers:
        turn = seen[offer.key] = seen.get(offer.key, -1) + 1
        groups.setdefault((turn, offer.can_update), []).append(offer)
    for group in sorted(groups):
        yield groups[group]


def outcome_of(created: bool | None) -> OfferOutcome:
    """Translate a returned row's flag; None stands for no row."""
    if created is None:
        return OfferOutcome.IGNORED
    return OfferOutcome.CREATED if created else OfferOutcome.UPDATED
