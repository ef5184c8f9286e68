"""Jobs as values: what is added, what can be known of one, and how long a failed one waits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeGuard

from delayed_queue.codecs import codec_named, encode
from delayed_queue.conf import get_settings
from delayed_queue.exceptions import InvalidConfiguration, InvalidJob, InvalidMessage, suggest
from delayed_queue.http.jobs.kinds import Way, check_topic, host_of
from delayed_queue.messages import (
    MAX_KEY_LENGTH,
    MILLISECOND,
    OfferOutcome,
    check_group,
    check_text,
    encode_headers,
    from_milliseconds,
    to_milliseconds,
)
from delayed_queue.observe.instruments import headers_for
from delayed_queue.retries import RetryPolicy

# Nine waits, ten attempts, 25 h 13 m 15 s in all (J1).
DEFAULT_LADDER: Final = "15s 3m 10m 30m 30m 1h 2h 6h 15h"
MAX_STEPS: Final = 100
MAX_RETRY: Final = 1000
MAX_TTR: Final = timedelta(days=1)
_MIN_TTR: Final = timedelta(milliseconds=1)


def check_ladder(ladder: Any) -> str:
    """Return a ladder, a text or list of durations, in its stored form: ``"15s 3m 10m"``.

    A number in a list is one of seconds. Raises InvalidConfiguration.
    """
    if isinstance(ladder, list):
        # Before any of them is looked at: they may be a hundred thousand.
        ladder = " ".join(_step(each) for each in _few(ladder))
    if not isinstance(ladder, str):
        raise InvalidConfiguration("A ladder is a text or a list of durations, as in '15s 3m'.")
    steps = _few(ladder.split(maxsplit=MAX_STEPS))
    RetryPolicy.ladder(" ".join(steps))
    return " ".join(steps)


def _few(steps: list[Any]) -> list[Any]:
    if len(steps) > MAX_STEPS:
        raise InvalidConfiguration(f"A ladder has at most {MAX_STEPS} steps.")
    return steps


def _step(step: Any) -> str:
    if isinstance(step, str) and len(step.split(maxsplit=1)) == 1:
        return step
    if _is_number(step):
        return f"{step}s"
    raise InvalidConfiguration("A step of a ladder is a duration as in '15s', or seconds.")


@lru_cache(maxsize=1000)
def policy_named(ladder: str, jitter: float) -> RetryPolicy:
    """Return the policy of a stored ladder; the empty one is the default."""
    return RetryPolicy.ladder(ladder or DEFAULT_LADDER, jitter=jitter)


def policy_of_job(headers: Mapping[str, Any], ladder: str = "", jitter: float = 0.0) -> RetryPolicy:
    """Return the policy of a job by its headers, where they say nothing that of its topic.

    Headers are anybody's, for a message may be offered without the HTTP side; what is none is
    as if it were not there.
    """
    own, own_jitter = headers.get("ladder"), headers.get("jitter")
    if _is_number(own_jitter) and 0 <= own_jitter <= 1:
        jitter = float(own_jitter)
    try:
        return policy_named(check_ladder(own) if own else ladder, jitter)
    except InvalidConfiguration:
        return policy_named(ladder, jitter)


def initial_retry(headers: Mapping[str, Any]) -> int:
    """Return the failures that a job was added with."""
    retry = headers.get("retry")
    return retry if type(retry) is int and 0 <= retry <= MAX_RETRY else 0


def delay_after_failure(
    headers: Mapping[str, Any], attempts: int, ladder: str = "", jitter: float = 0.0
) -> timedelta | None:
    """Return the wait after this delivery has failed; None when it was the last."""
    attempt = initial_retry(headers) + attempts
    return policy_of_job(headers, ladder, jitter).delay_after(attempt)


def ttr_of_job(headers: Mapping[str, Any]) -> timedelta | None:
    """Return how long a consumer may hold the job, if it says."""
    ttr = headers.get("ttr")
    if not _is_number(ttr) or ttr != ttr:
        return None
    milliseconds = min(max(ttr * 1000, 1), MAX_TTR // MILLISECOND)
    return int(milliseconds) * _MIN_TTR


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


# Made once: `X | Y` makes a new one each time.
_NUMBERS: Final = (int, float)
FIELDS: Final = dict.fromkeys((
    "jobId", "topic", "delay", "body", "retry", "url", "runAt", "ttr", "ladder", "jitter", "group",
))  # fmt: skip
MAX_DELAY: Final = timedelta(days=3652)
_MAX_SECONDS: Final = MAX_DELAY.total_seconds()
MAX_URL_LENGTH: Final = 2048
# More are not named, and of fewer a guess is made what was meant.
MAX_UNKNOWN: Final = 21
MAX_GUESSES: Final = 3
MAX_PATH_LENGTH: Final = 500
CODEC: Final = codec_named("json")
_encoded: Final = partial(encode, CODEC)
_NO_BODY: Final = _encoded(None)
Checked = Callable[[Any], Any]
# Lone surrogates too: they have no place in UTF-8.
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class IfExists(StrEnum):
    """The answer to a job that is added when the topic has one of its id."""

    FAIL = "fail"
    IGNORE = "ignore"
    UPDATE = "update"


class JobState(StrEnum):
    """The state of a job at the moment it is read."""

    DELAYED = "delayed"
    READY = "ready"
    RESERVED = "reserved"
    DEAD = "dead"


class Answer(StrEnum):
    """The outcome of a call about one job."""

    DONE = "done"
    STALE = "stale"
    MISSING = "missing"


# Not frozen, as a bulk has a thousand of them: that takes three times as long to make one.
@dataclass(slots=True)
class NewJob:
    """A validated job, as it is stored; ``schedule_at`` and ``delay`` in milliseconds.

    ``host`` is that of its url, if it has one.
    """

    job_id: str
    topic: str
    payload: bytes = field(repr=False)
    headers: str | None = field(repr=False)
    way: Way = Way.PULLED
    schedule_at: int | None = None
    delay: int = 0
    host: str = ""
    group: str | None = None


@dataclass(slots=True)
class AddedJob:
    """The result of adding a job; the outcome None: it existed, and the caller asked for a failure.

    Of such a one nothing else is told.
    """

    job_id: str
    topic: str
    outcome: OfferOutcome | None
    state: JobState | None = None
    run_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands. ``retry`` counts its failures so far, not an attempt under way.

    ``run_at`` is when it is or was due, ``expires_at`` the end of the lease of a reserved one.
    """

    job_id: str
    topic: str
    state: JobState
    retry: int
    run_at: datetime | None
    created_at: datetime
    url: str | None = field(default=None, repr=False)
    expires_at: datetime | None = None
    died_at: datetime | None = None
    dead_letter_id: int | None = None
    last_error: str = field(default="", repr=False)
    group: str | None = None


@dataclass(frozen=True, slots=True)
class PoppedJob:
    """A job under a lease; ``lease_token`` proves it."""

    job_id: str
    body: Any = field(repr=False)
    attempt: int
    lease_token: str = field(repr=False)
    expires_at: datetime
    message_id: int = field(repr=False)
    group: str | None = None


def job_from(
    fields: Mapping[str, Any],
    *,
    check_url: Callable[[str], object] | None = None,
    guesses: int = MAX_GUESSES,
) -> NewJob:
    """Return the job that the fields of a request describe.

    ``check_url`` raises InvalidMessage for a url that must not be called. Raises InvalidJob with
    an error for each field that is wrong, not for the first one alone, but for no more than 21
    unknown names; of the first ``guesses`` of them it says what was meant.
    """
    reader = _Reader(fields)
    reader.refuse_unknown(guesses)
    job_id = reader.read("jobId", check_job_id, required=True)
    topic = reader.read("topic", check_topic, required=True)
    delay = reader.read("delay", check_delay)
    schedule_at = reader.read("runAt", check_run_at)
    if delay is not None and schedule_at is not None:
        reader.errors.append(("runAt", "Give delay or runAt, not both."))
    payload = reader.read("body", _encoded, default=_NO_BODY)
    group = reader.read("group", check_job_group)
    headers = reader.headers(check_url)
    if reader.errors:
        raise InvalidJob(errors=reader.errors)
    way = Way.CALLBACK if "url" in headers else Way.PULLED
    given: Mapping[str, Any] | None = headers or None
    if get_settings().INSTRUMENTS:
        given = headers_for(topic, given)
    sealed = encode_headers(given)
    host = host_of(headers["url"]) if "url" in headers else ""
    return NewJob(job_id, topic, payload, sealed, way, schedule_at, delay or 0, host, group)


class NewCall(NamedTuple):
    """A task to be enqueued: its name, its arguments, and when; the delay in milliseconds."""

    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    schedule_at: datetime | None
    delay: int


_CALL_FIELDS: Final = dict.fromkeys(("task", "args", "kwargs", "delay", "runAt"))


def call_from(fields: Mapping[str, Any]) -> NewCall:
    """Return the call that the fields of a request describe; raises InvalidJob."""
    reader = _Reader(fields, "task", _CALL_FIELDS)
    reader.refuse_unknown(MAX_GUESSES)
    name = reader.read("task", _path, required=True)
    args = reader.read("args", partial(_one_of, list, "an array"), default=[])
    kwargs = reader.read("kwargs", partial(_one_of, dict, "an object"), default={})
    delay = reader.read("delay", check_delay, default=0)
    run_at = reader.read("runAt", check_run_at)
    if delay and run_at is not None:
        reader.errors.append(("runAt", "Give delay or runAt, not both."))
    if reader.errors:
        raise InvalidJob(errors=reader.errors)
    return NewCall(name, args, kwargs, None if run_at is None else from_milliseconds(run_at), delay)


def _path(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_PATH_LENGTH:
        raise InvalidMessage(f"A task is named by its path, of 1 to {MAX_PATH_LENGTH} characters.")
    _refuse_controls("A task's path", value)
    return check_text("path", value)


def _one_of(kind: type[Any], noun: str, value: Any) -> Any:
    if not isinstance(value, kind):
        raise InvalidMessage(f"This must be {noun}.")
    return value


class _Reader:
    """Read fields, and collect what is wrong with them."""

    def __init__(
        self, fields: Mapping[str, Any], noun: str = "job", known: Mapping[str, None] = FIELDS
    ) -> None:
        self._fields, self._noun, self._known = fields, noun, known
        self.errors: list[tuple[str, str]] = []

    def refuse_unknown(self, guesses: int) -> None:
        if self._fields.keys() <= self._known.keys():
            return
        unknown = (name for name in self._fields if name not in self._known)
        for number, name in enumerate(islice(unknown, MAX_UNKNOWN)):
            close = suggest(name, self._known) if number < guesses else None
            hint = f" Did you mean {close}?" if close else ""
            self.errors.append((name[:100], f"A {self._noun} has no such field.{hint}"))

    def read(
        self, name: str, check: Checked, *, required: bool = False, default: Any = None
    ) -> Any:
        value = self._fields.get(name)
        # null is as if it were absent, but for a body, which may be null and then is.
        if value is None:
            if required:
                self.errors.append((name, "This field is required."))
            return default
        try:
            return check(value)
        except (InvalidMessage, InvalidConfiguration) as error:
            self.errors.append((name, str(error)))
            return default

    def headers(self, check_url: Callable[[str], object] | None) -> dict[str, Any]:
        """Return what of a job is kept in its headers; most have nothing of it."""
        if _IN_HEADERS.keys().isdisjoint(self._fields):
            return {}
        checks: dict[str, Checked] = {**_IN_HEADERS, "url": partial(_url, check_url)}
        read = {name: self.read(name, check) for name, check in checks.items()}
        return {name: value for name, value in read.items() if value is not None}


def check_job_id(job_id: Any) -> str:
    """Return the id of a new job, or refuse one that could not be named in a path."""
    if not isinstance(job_id, str):
        raise InvalidMessage("A job's id is a text.")
    if not 1 <= len(job_id) <= MAX_KEY_LENGTH:
        raise InvalidMessage(f"A job's id has 1 to {MAX_KEY_LENGTH} characters.")
    _refuse_controls("A job's id", job_id)
    if "/" in job_id or job_id in {".", ".."}:
        raise InvalidMessage("A job's id holds no slash, and is neither '.' nor '..'.")
    return job_id


def check_job_group(group: Any) -> str | None:
    """Return the group of a new job, or refuse one that could not be shown."""
    found = check_group(group)
    if found is not None:
        _refuse_controls("A group", found)
    return found


def check_delay(delay: Any) -> int:
    """Return seconds in milliseconds, rounded up: never early."""
    if not _is_number(delay):
        raise InvalidMessage("A delay is a number of seconds.")
    # Written so that NaN, which is in no order, is refused too.
    if not 0 <= delay <= _MAX_SECONDS:
        raise InvalidMessage("A delay is from 0 seconds to 10 years.")
    return math.ceil(delay * 1000)


def check_run_at(run_at: Any) -> int:
    """Return the instant of an ISO 8601 text with a zone, in milliseconds, rounded up."""
    if not isinstance(run_at, str):
        raise InvalidMessage("An instant is a text as in '2030-01-31T12:00:00Z'.")
    try:
        instant = datetime.fromisoformat(run_at)
    except ValueError as error:
        raise InvalidMessage("An instant is written as in '2030-01-31T12:00:00Z'.") from error
    if instant.utcoffset() is None:
        raise InvalidMessage("The instant has no zone: end it with Z or as in +02:00.")
    try:
        instant.astimezone(UTC)
        is_far = instant > datetime.now(UTC) + MAX_DELAY
        milliseconds = to_milliseconds(instant + timedelta(microseconds=999))
    except OverflowError as error:
        raise InvalidMessage("The instant is outside the years 1 to 9999 in UTC.") from error
    if is_far:
        raise InvalidMessage("The instant is more than 10 years ahead.")
    return milliseconds


def check_retry(retry: Any) -> int | None:
    # 1.0 is a whole number to JSON.
    if not _is_number(retry) or not 0 <= retry <= MAX_RETRY or retry != int(retry):
        raise InvalidMessage(f"retry counts failures, from 0 to {MAX_RETRY}.")
    return int(retry) or None


def check_url_text(url: Any) -> str:
    """Return the url as far as it can be stored; whether it may be called is another matter."""
    if not isinstance(url, str) or not 1 <= len(url) <= MAX_URL_LENGTH:
        raise InvalidMessage(f"A url is a text of 1 to {MAX_URL_LENGTH} characters.")
    _refuse_controls("A url", url)
    return url


def _url(check: Callable[[str], object] | None, url: Any) -> str:
    found = check_url_text(url)
    if check is not None:
        check(found)
    return found


def check_ttr(ttr: Any) -> int | float:
    if not _is_number(ttr):
        raise InvalidMessage("A ttr is a number of seconds.")
    if not 1 <= ttr <= MAX_TTR.total_seconds():
        raise InvalidMessage(f"A ttr is from 1 to {MAX_TTR.total_seconds():.0f} seconds.")
    return ttr


def check_jitter(jitter: Any) -> float:
    if not _is_number(jitter) or not 0 <= jitter <= 1:
        raise InvalidMessage("jitter is a number from 0 to 1.")
    return float(jitter)


def _refuse_controls(what: str, text: str) -> None:
    # Printable is what has none of them, and less; to see that takes a fifth of the time.
    if not text.isprintable() and _CONTROLS.search(text):
        raise InvalidMessage(f"{what} holds no control characters and no lone surrogates.")


_IN_HEADERS: Final[dict[str, Checked]] = {
    "ladder": check_ladder,
    "ttr": check_ttr,
    "retry": check_retry,
    "jitter": check_jitter,
    "url": check_url_text,
}


def read_headers(headers: str | None) -> dict[str, Any]:
    """Return stored headers; what another writer stored instead of an object counts as none."""
    found = json.loads(headers) if headers else {}
    return found if isinstance(found, dict) else {}


def url_of(headers: Mapping[str, Any]) -> str | None:
    url = headers.get("url")
    return url if isinstance(url, str) else None
