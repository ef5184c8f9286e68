"""Requests that add jobs and tasks: their fields, and what is stored of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from delayed_queue.codecs import encode
from delayed_queue.conf import get_settings
from delayed_queue.db.clock import database_now
from delayed_queue.durations import LONGEST, ZERO, check_duration
from delayed_queue.exceptions import InvalidJob, InvalidMessage
from delayed_queue.http.conf import api_settings
from delayed_queue.http.jobs.jobs import (
    CODEC,
    DEFAULT_LADDER,
    MAX_DELAY,
    MAX_RETRY,
    MAX_STEPS,
    MAX_TTR,
    MAX_URL_LENGTH,
    NewJob,
    check_ladder,
)
from delayed_queue.http.jobs.kinds import MAX_TOPIC_LENGTH, TOPIC_PATTERN, Way, host_of
from delayed_queue.http.reading import (
    CONTROLS,
    CUSTOM,
    MAX_GUESSES,
    Custom,
    Errors,
    between,
    matching,
    printable,
    read,
)
from delayed_queue.instruments import headers_for
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_KEY_LENGTH,
    encode_headers,
    expires_too_early,
    to_milliseconds,
)

_encoded: Final = partial(encode, CODEC)
_NO_BODY: Final = _encoded(None)
_MAX_TASK_LENGTH: Final = 500
MAX_ID: Final = 2**63 - 1
# The guard decides which hosts, addresses and ports may be called.
URL_PATTERN: Final = (
    r"^[Hh][Tt][Tt][Pp][Ss]?://[^/?#@%\\ \x00-\x1f\x7f]+"
    r"([/?]([^#%\\ \x00-\x1f\x7f]|%[0-9A-Fa-f]{2})*)?\Z"
)
_DURATION: Final = r"[0-9]{1,4}(\.[0-9]{1,3})?(ms|s|m|h|d|w)?"
# A rule that no type expresses: at most one of delay and runAt.
NOT_BOTH: Final = Meta(
    extra_json_schema={
        "not": {
            "required": ["delay", "runAt"],
            "properties": {"delay": {"type": ["number", "string"]}, "runAt": {"type": "string"}},
        }
    }
)


class Instant(int):
    """An instant in milliseconds, read from an ISO 8601 text with a zone, rounded up."""


class Delay(float):
    """Seconds from now, read from any form of a duration."""


class Ttr(float):
    """Seconds of a lease, read from any form of a duration."""


class Wait(float):
    """Seconds to wait for a job, read from any form of a duration."""


class Ladder(str):
    """A retry ladder in its stored form."""

    __slots__ = ()


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


_LADDER: Final = rf"^{_DURATION}( {_DURATION}){{0,{MAX_STEPS - 1}}}$"


def _seconds(least: timedelta, most: timedelta) -> Custom:
    """Return how a duration is read as seconds, and its schema."""
    limits = {"minimum": least.total_seconds(), "maximum": most.total_seconds()}
    text = {"type": "string", "pattern": f"^{_DURATION}$", "examples": ["15m"]}
    return Custom(
        lambda value: check_duration("It", value, least, most).total_seconds(),
        {"anyOf": [{"type": "number", **limits, "description": "Seconds."}, text]},
    )


CUSTOM[Delay] = _seconds(ZERO, MAX_DELAY)
CUSTOM[Ttr] = _seconds(timedelta(seconds=1), MAX_TTR)
CUSTOM[Wait] = _seconds(ZERO, LONGEST)
CUSTOM[Instant] = Custom(check_run_at, {"type": "string", "format": "date-time"})
CUSTOM[Ladder] = Custom(check_ladder, {"type": "string", "pattern": _LADDER})

_TOPIC_RULE: Final = "Use A-Z, a-z, 0-9, '.', '_', ':' and '-'; do not start with '.', ':' or '-'."
_ID_RULE: Final = "It has no slash and no control characters, and is neither '.' nor '..'."
_URL_RULE: Final = (
    "It begins with http:// or https://, and has no user, fragment or blank. "
    "An escape in a url is % and two hexadecimal digits; % itself is %25."
)
_JOB_ID: Final = rf"^(?!\.{{1,2}}\Z)[^/{CONTROLS}]+\Z"
TopicName = Annotated[str, matching(rf"^{TOPIC_PATTERN}\Z", _TOPIC_RULE, MAX_TOPIC_LENGTH)]
_NewId = Annotated[
    str,
    matching(
        _JOB_ID, _ID_RULE, MAX_KEY_LENGTH, "The caller's name for the job, unique in its topic."
    ),
]
_Url = Annotated[
    str,
    matching(
        URL_PATTERN, _URL_RULE, MAX_URL_LENGTH,
        "The URL to call when the job is due. Without it, consumers pop the job.",
    ),
]  # fmt: skip
_Delay = Annotated[Delay, Meta(description="From now, by the database's clock. Default: 0.")]
_RunAt = Annotated[Instant, Meta(description="Instead of delay: a time, at most 10 years ahead.")]
_ExpiresAt = Annotated[
    Instant, Meta(description="The time after which it is deleted instead of being delivered.")
]
_ExpiresIn = Annotated[Delay, Meta(description="Instead of expiresAt: from now.")]
_Retry = Annotated[int, between(0, MAX_RETRY, "Failures so far: where on the ladder it starts.")]
_Ttr = Annotated[Ttr, Meta(description="How long a consumer may hold the job.")]
_Ladder = Annotated[
    Ladder,
    Meta(description=f"The delay after each failure. Default: {DEFAULT_LADDER}."),
]
_Jitter = Annotated[float, between(0, 1, "Spreads each delay: 0.2 means ± 20 %.")]
_Group = Annotated[
    str, printable(MAX_GROUP_LENGTH, "The group whose limits apply, if the topic has limits.")
]
_Task = Annotated[str, printable(_MAX_TASK_LENGTH, "The path of a task with http=True.")]


_Batch = Annotated[int, between(1, MAX_ID, "The open batch that it joins.")]
_Lease = Annotated[str, printable(36, "The lease of a job of this batch, open or closed.")]


class JobRequest(Struct, rename="camel", forbid_unknown_fields=True):
    """A job to add. Null counts as absent, except for the body."""

    job_id: _NewId
    topic: TopicName
    delay: _Delay | None = None
    run_at: _RunAt | None = None
    body: Annotated[Any, Meta(description="Any JSON; it is delivered in canonical form.")] = None
    retry: _Retry | None = None
    url: _Url | None = None
    ttr: _Ttr | None = None
    ladder: _Ladder | None = None
    jitter: _Jitter | None = None
    group: _Group | None = None
    expires_at: _ExpiresAt | None = None
    expires_in: _ExpiresIn | None = None
    batch: _Batch | None = None
    lease_token: _Lease | None = None


def job_from(
    fields: Mapping[str, Any],
    *,
    check_url: Callable[[str], object] | None = None,
    guesses: int = MAX_GUESSES,
) -> NewJob:
    """Return the job that the fields of a request describe.

    ``check_url`` raises InvalidMessage for a url that must not be called. Raises InvalidJob with an
    error for each wrong field. At most 21 unknown names are reported, the first ``guesses`` of
    them with the known name that is most like it.
    """
    errors: Errors = []
    found = read(JobRequest, fields, errors, guesses=guesses)
    if check_url is not None and "url" not in dict(errors):
        errors += _url_errors(fields.get("url"), check_url)
    errors += _pair_errors(fields)
    if found is not None and (found.expires_at is not None or found.expires_in is not None):
        errors += _expiry_errors(found)
    if found is None or errors:
        raise InvalidJob(errors=errors)
    return NewJob(
        found.job_id,
        found.topic,
        _payload(found.body),
        _headers(found),
        Way.PULLED if found.url is None else Way.CALLBACK,
        None if found.run_at is None else int(found.run_at),
        _milliseconds(found.delay),
        "" if found.url is None else host_of(found.url),
        found.group,
        None if found.expires_at is None else int(found.expires_at),
        None if found.expires_in is None else _milliseconds(found.expires_in),
        found.batch,
        found.lease_token,
    )


def _url_errors(url: str | None, check: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    try:
        if url is not None:
            check(url)
    except InvalidMessage as error:
        yield "url", str(error)


def _pair_errors(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if fields.get("delay") is not None and fields.get("runAt") is not None:
        yield "runAt", "Give delay or runAt, not both."
    if fields.get("leaseToken") is not None and fields.get("batch") is None:
        yield "leaseToken", "It is for a job with a batch."


def _expiry_errors(job: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield the error of an expiry that is given twice, or not after the due time."""
    if job.expires_at is not None and job.expires_in is not None:
        yield "expiresIn", "Give expiresAt or expiresIn, not both."
        return
    at, life = (None if job.expires_at is None else int(job.expires_at)), job.expires_in
    if expires_too_early(
        at,
        None if life is None else _milliseconds(life),
        None if job.run_at is None else int(job.run_at),
        _milliseconds(job.delay),
        partial(database_now, api_settings().DATABASE),
    ):
        name = "expiresIn" if at is None else "expiresAt"
        yield name, "The job would expire at or before its due time."


def _payload(body: Any) -> bytes:
    try:
        return _NO_BODY if body is None else _encoded(body)
    except InvalidMessage as error:
        raise InvalidJob(errors=[("body", str(error))]) from None


def _headers(job: JobRequest) -> str | None:
    given = {
        "ladder": job.ladder, "ttr": job.ttr, "retry": job.retry or None, "jitter": job.jitter,
        "url": job.url,
    }  # fmt: skip
    kept: Mapping[str, Any] | None = {
        name: value for name, value in given.items() if value is not None
    }
    if get_settings().INSTRUMENTS:
        kept = headers_for(job.topic, kept or None)
    return encode_headers(kept or None)


def _milliseconds(delay: float | None) -> int:
    """Return seconds in milliseconds, rounded up: never early."""
    return math.ceil(delay * 1000) if delay else 0


class TaskRequest(Struct, rename="camel", forbid_unknown_fields=True):
    """A task to enqueue. Null counts as absent."""

    task: _Task
    args: Annotated[list[Any], Meta(description="Its arguments.")] | None = None
    kwargs: Annotated[dict[str, Any], Meta(description="Its named arguments.")] | None = None
    delay: _Delay | None = None
    run_at: _RunAt | None = None


def call_from(fields: Mapping[str, Any]) -> TaskRequest:
    """Return the call that the fields of a request describe; raises InvalidJob."""
    errors: Errors = []
    found = read(TaskRequest, fields, errors)
    errors += _pair_errors(fields)
    if found is None or errors:
        raise InvalidJob(errors=errors)
    return found
