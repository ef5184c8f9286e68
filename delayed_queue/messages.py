"""The values of a queue: messages as they are offered, delivered and read back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from delayed_queue.durations import Duration, parse_duration
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage

P = ParamSpec("P")
T = TypeVar("T")

MAX_KEY_LENGTH: Final = 200
MAX_GROUP_LENGTH: Final = 100
# Characters of a message's headers as JSON. Each claim reads the headers, so large data belongs
# in the payload.
MAX_HEADERS_LENGTH: Final = 65_536
# Fast claims skip rows that another claim has locked; strict ones run one at a time.
CLAIMS: Final = ("fast", "strict")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)


class OfferOutcome(StrEnum):
    """The result of an offer for the stored message."""

    CREATED = "created"
    UPDATED = "updated"
    IGNORED = "ignored"


class DeliveryType(StrEnum):
    """The kind of a delivery: the first, or one that may be a repetition."""

    FIRST = "first"
    REDELIVERY = "redelivery"


class MessageState(StrEnum):
    """The state of a stored message at the moment it is read."""

    SCHEDULED = "scheduled"
    DUE = "due"
    LEASED = "leased"


def to_milliseconds(at: datetime) -> int:
    """Return whole milliseconds since 1970-01-01T00:00Z, floored, exact before 1970 too."""
    return (at - EPOCH) // MILLISECOND


MIN_MILLISECONDS: Final = to_milliseconds(datetime.min.replace(tzinfo=UTC))
MAX_MILLISECONDS: Final = to_milliseconds(datetime.max.replace(tzinfo=UTC))


def from_milliseconds(milliseconds: int) -> datetime:
    """Return the UTC instant; values a datetime cannot hold are clamped to its range.

    A service of another language may store any 64-bit value; reading one must not fail.
    """
    clamped = min(max(milliseconds, MIN_MILLISECONDS), MAX_MILLISECONDS)
    return EPOCH + timedelta(milliseconds=clamped)


def check_text(what: str, value: str) -> str:
    """Return the text, or refuse what PostgreSQL cannot store: NUL and lone surrogates."""
    if "\x00" in value:
        raise InvalidMessage(f"The {what} {value!r} contains a NUL character.")
    if value.isascii():
        return value
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"The {what} {value!r} is not valid Unicode text.") from error
    return value


def check_key(key: str) -> str:
    """Return the key, or refuse one that is not 1 to 200 storable characters."""
    return _check_name("key", key, MAX_KEY_LENGTH)


def check_group(group: str | None) -> str | None:
    """Return the group, or refuse one that is not 1 to 100 storable characters; None is none."""
    return None if group is None else _check_name("group", group, MAX_GROUP_LENGTH)


def _check_name(what: str, name: str, most: int) -> str:
    if not isinstance(name, str):
        raise InvalidMessage(f"A {what} must be a str, not {type(name).__name__}: {name!r}.")
    if not 1 <= len(name) <= most:
        raise InvalidMessage(
            f"A {what} has 1 to {most} characters; this one has {len(name)}: {name[:40]!r}."
        )
    return check_text(what, name)


def check_schedule(at: datetime | None, name: str = "schedule_at") -> int | None:
    """Return the instant in milliseconds since the epoch, floored; None means now."""
    if at is None:
        return None
    if not isinstance(at, datetime):
        raise InvalidMessage(f"{name} must be an aware datetime, not {at!r}.")
    if at.utcoffset() is None:
        raise InvalidMessage(
            f"{name} {at!r} has no time zone; use an aware datetime "
            "(django.utils.timezone.now(), or tzinfo=datetime.UTC)."
        )
    milliseconds = to_milliseconds(at)
    if not MIN_MILLISECONDS <= milliseconds <= MAX_MILLISECONDS:
        raise InvalidMessage(f"{name} {at!r} is outside the years 1 to 9999 in UTC.")
    return milliseconds


def check_claim(claim: Any) -> str:
    """Return the mode of claiming, or refuse what is none."""
    if claim not in CLAIMS:
        raise InvalidConfiguration(f"claim must be one of {', '.join(CLAIMS)}, not {claim!r}.")
    return str(claim)


def check_delay(delay: Duration | None, now: datetime, name: str = "delay") -> int | None:
    """Return the delay in milliseconds, floored, refusing one that leaves the years 1 to 9999."""
    if delay is None:
        return None
    milliseconds = _span(name, delay) // MILLISECOND
    if not MIN_MILLISECONDS <= to_milliseconds(now) + milliseconds <= MAX_MILLISECONDS:
        raise InvalidMessage(f"{name} {delay!r} leads outside the years 1 to 9999.")
    return milliseconds


def _span(name: str, duration: Duration) -> timedelta:
    try:
        return parse_duration(duration)
    except InvalidConfiguration as error:
        raise InvalidMessage(f"{name}: {error}") from None


def check_expiry(
    expires_at: datetime | None,
    expires_in: Duration | None,
    *,
    schedule: int | None,
    delay: int,
    clock: Callable[[], datetime],
) -> tuple[int | None, int | None]:
    """Return the expiry in milliseconds: since the epoch, or from now.

    Refuses one at or before the due time, which is ``schedule``, or ``delay`` from now.
    """
    if expires_at is None and expires_in is None:
        return None, None
    if expires_at is not None and expires_in is not None:
        raise InvalidMessage("Give expires_at or expires_in, not both.")
    at = check_schedule(expires_at, "expires_at")
    life = None if expires_in is None else check_delay(expires_in, clock(), "expires_in")
    if expires_too_early(at, life, schedule, delay, clock):
        due_at = to_milliseconds(clock()) + delay if schedule is None else schedule
        raise InvalidMessage(
            f"The message would expire at or before its due time, {from_milliseconds(due_at)}: "
            f"{expires_at or expires_in!r}."
        )
    return at, life


def expires_too_early(
    at: int | None,
    life: int | None,
    schedule: int | None,
    delay: int,
    clock: Callable[[], datetime],
) -> bool:
    """True if a message expires at or before its due time, each an instant or a time from now.

    The clock is read only to compare an instant with a time from now.
    """
    ends_at, due_at = (life or 0) if at is None else at, delay if schedule is None else schedule
    if (at is None) is not (schedule is None):
        now = to_milliseconds(clock())
        ends_at, due_at = (ends_at + now, due_at) if at is None else (ends_at, due_at + now)
    return ends_at <= due_at


def check_latest(
    delay: Duration | None, latest: Duration, schedule_at: datetime | None
) -> tuple[timedelta, timedelta]:
    """Return delay and upper bound of a debounced offer, or refuse them."""
    bound = _span("latest", latest)
    if schedule_at is not None:
        raise InvalidMessage("latest limits a delay: give delay, not schedule_at.")
    if delay is None or bound < _span("delay", delay):
        raise InvalidMessage(f"latest {latest!r} needs a delay, and must not be below it.")
    return _span("delay", delay), bound


def encode_headers(headers: Mapping[str, Any] | None) -> str | None:
    """Return the headers as JSON text, or refuse what the jsonb column cannot store."""
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise InvalidMessage(f"headers must map str to JSON values, not {headers!r}.")
    try:
        text = _HEADERS.encode(dict(headers))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(f"headers are not JSON: {error}.") from error
    if len(text) > MAX_HEADERS_LENGTH:
        raise InvalidMessage(
            f"Headers have at most {MAX_HEADERS_LENGTH} characters as JSON; these have {len(text)}."
        )
    check_texts("header text", headers)
    return text


def check_texts(what: str, value: Any) -> None:
    """Refuse a JSON value with a text that PostgreSQL cannot store."""
    for each in _strings(value):
        check_text(what, each)


# Made once: json.dumps() with these arguments makes an encoder per call.
_HEADERS: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _strings(name)
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """One message of a batch offer; without a schedule it is due at once."""

    key: str
    payload: Any
    schedule_at: datetime | None = None
    can_update: bool = True
    headers: Mapping[str, Any] | None = None
    group: str | None = None
    expires_at: datetime | None = None


class Leases(Protocol):
    """The interface that an envelope needs of the queue that leased it."""

    def acknowledge(self, envelope: Envelope) -> bool: ...

    def release(
        self, envelope: Envelope, delay: Duration | None = None, error: str = ""
    ) -> bool: ...

    def extend(self, envelope: Envelope, duration: Duration | None = None) -> bool: ...

    def reject(self, envelope: Envelope, reason: str) -> bool: ...

    def acknowledge_batch(self, batch: Any) -> int: ...

    def batch_of(self, envelope: Envelope) -> Any: ...

    async def in_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...


@dataclass(slots=True, eq=False)
class Envelope:
    """One delivery of a message, held under a lease.

    Every method that ends or changes the lease returns False when the lease was lost (the
    message was updated, dropped, or leased again after expiry); then nothing was changed.
    Instants are kept in milliseconds and become datetimes on demand, because most handlers do not
    read them.
    """

    key: str
    payload: Any
    queue: str
    attempt: int
    lease_id: str
    message_id: int
    scheduled_at_ms: int
    due_at_ms: int
    leased_until_ms: int
    headers: dict[str, Any]
    leases: Leases
    group: str | None = None
    # Milliseconds from the claim to the expiry of the message.
    expires_in_ms: int | None = None
    # The delivery before this one ended without a result: its process died, or its lease expired.
    is_retaken: bool = False
    # The batch that it is a member of.
    batch_id: int | None = None
    lease_lost: bool = False
    # The lease holds, but the handler should stop: its task was cancelled, for example.
    is_unwanted: bool = False
    # The handler itself offered the key anew, which ends the lease, not the handler. A rollback of
    # that offer goes unnoticed, so the flag stays.
    is_replaced: bool = False
    # The transaction that handles it has taken it out of the queue.
    is_consumed: bool = False
    # Its handler stopped because it was cancelled: a batch counts the message as dropped.
    was_cancelled: bool = False
    # The handler's own statement has settled it, or consume() has recorded its failure.
    is_settled: bool = False
    # The name of the function that handles it, where a treatment has several.
    handler: str = ""
    # Data of the handler's treatment about this delivery.
    state: Any = None

    def __repr__(self) -> str:
        # No payload: envelopes end up in logs and tracebacks.
        return f"<Envelope {self.queue}/{self.key} attempt {self.attempt}>"

    @property
    def is_cancelled(self) -> bool:
        """True when the handler's result is no longer wanted, so that it should stop.

        The message was dropped, taken over or replaced (not by the handler itself), the task was
        cancelled, or the timeout is over.
        """
        return (self.lease_lost and not self.is_replaced) or self.is_unwanted

    @property
    def delivery_type(self) -> DeliveryType:
        """FIRST, or REDELIVERY once the message was leased or deferred before."""
        if self.attempt > 1 or self.due_at_ms > self.scheduled_at_ms:
            return DeliveryType.REDELIVERY
        return DeliveryType.FIRST

    @property
    def scheduled_at(self) -> datetime:
        """When the message was scheduled by its offer, unmoved by leases and retries."""
        return from_milliseconds(self.scheduled_at_ms)

    @property
    def due_at(self) -> datetime:
        """When this delivery fell due: the schedule, a retry's time, or an old lease's end."""
        return from_milliseconds(self.due_at_ms)

    @property
    def leased_until(self) -> datetime:
        """When the lease ends and others may take the message, on the database's clock."""
        return from_milliseconds(self.leased_until_ms)

    @property
    def batch(self) -> Any:
        """The ``MessageBatch`` of the message, to add members; None without one."""
        return None if self.batch_id is None else self.leases.batch_of(self)

    def acknowledge(self) -> bool:
        """Delete the message, if this lease still holds it."""
        return self.leases.acknowledge(self)

    def release(self, delay: Duration | None = None, error: str = "") -> bool:
        """Give the message back, due now or after the delay, and record the error."""
        return self.leases.release(self, delay, error)

    def extend(self, duration: Duration | None = None) -> bool:
        """Prolong the lease to at least now + duration; default the queue's lease duration."""
        return self.leases.extend(self, duration)

    def reject(self, reason: str) -> bool:
        """Move the message to the dead letters."""
        return self.leases.reject(self, reason)

    async def aacknowledge(self) -> bool:
        return await self.leases.in_thread(self.acknowledge)

    async def arelease(self, delay: Duration | None = None, error: str = "") -> bool:
        return await self.leases.in_thread(self.release, delay, error)

    async def aextend(self, duration: Duration | None = None) -> bool:
        return await self.leases.in_thread(self.extend, duration)

    async def areject(self, reason: str) -> bool:
        return await self.leases.in_thread(self.reject, reason)


def has_expired(envelope: Envelope, seconds: float = 0.0) -> bool:
    """True if the message has expired N seconds after its claim."""
    return envelope.expires_in_ms is not None and envelope.expires_in_ms <= seconds * 1000


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as it stands in the queue, read without leasing it."""

    key: str
    queue: str
    state: MessageState
    attempts: int
    scheduled_at: datetime
    scheduled_at_initially: datetime
    created_at: datetime
    lease_id: str | None
    headers: dict[str, Any]
    last_error: str
    data: bytes = field(repr=False)
    decode: Callable[[bytes], Any] = field(repr=False, compare=False)
    group: str | None = None
    expires_at: datetime | None = None

    @property
    def payload(self) -> Any:
        """The decoded payload; PayloadNotDecodable when the stored bytes do not decode."""
        return self.decode(self.data)

    @property
    def leased_until(self) -> datetime | None:
        return self.scheduled_at if self.state is MessageState.LEASED else None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The counts of a queue; each stops at ``cap``, so its cost is bounded at any size."""

    due: int
    scheduled: int
    leased: int
    dead: int
    oldest_due_age: timedelta | None
    cap: int

    @property
    def is_capped(self) -> bool:
        """True if a count reached the cap, so that the real number may be larger."""
        # Scheduled and leased messages are counted together, then separated.
        return self.cap <= max(self.due, self.scheduled + self.leased, self.dead)
