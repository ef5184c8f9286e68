"""Jobs as values: new jobs, their states, and their retry delays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeGuard

from delayed_queue.codecs import codec_named
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.jobs.kinds import Way
from delayed_queue.messages import MILLISECOND, OfferOutcome
from delayed_queue.retries import RetryPolicy

# Nine waits, ten attempts, 25 h 13 m 15 s in all (J1).
DEFAULT_LADDER: Final = "15s 3m 10m 30m 30m 1h 2h 6h 15h"
MAX_STEPS: Final = 100
MAX_RETRY: Final = 1000
MAX_TTR: Final = timedelta(days=1)
_MIN_TTR: Final = timedelta(milliseconds=1)


def check_ladder(ladder: Any) -> str:
    """Return a ladder in its stored form: ``"15s 3m 10m"``. Raises InvalidConfiguration."""
    if not isinstance(ladder, str):
        raise InvalidConfiguration("A ladder is a text of durations, as in '15s 3m'.")
    steps = ladder.split(maxsplit=MAX_STEPS)
    if len(steps) > MAX_STEPS:
        raise InvalidConfiguration(f"A ladder has at most {MAX_STEPS} steps.")
    RetryPolicy.ladder(" ".join(steps))
    return " ".join(steps)


@lru_cache(maxsize=1000)
def policy_named(ladder: str, jitter: float) -> RetryPolicy:
    """Return the policy of a stored ladder."""
    return RetryPolicy.ladder(ladder, jitter=jitter)


def policy_of_job(headers: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy of a job by its headers, by default the default ladder.

    Messages may be offered without the HTTP API, so headers may have any value. Invalid ones count
    as missing.
    """
    ladder, given = headers.get("ladder"), headers.get("jitter")
    jitter = float(given) if _is_number(given) and 0 <= given <= 1 else 0.0
    try:
        return policy_named(check_ladder(ladder) if ladder else DEFAULT_LADDER, jitter)
    except InvalidConfiguration:
        return policy_named(DEFAULT_LADDER, jitter)


def initial_retry(headers: Mapping[str, Any]) -> int:
    """Return the failures that a job was added with."""
    retry = headers.get("retry")
    return retry if type(retry) is int and 0 <= retry <= MAX_RETRY else 0


def delay_after_failure(headers: Mapping[str, Any], attempts: int) -> timedelta | None:
    """Return the wait after this delivery has failed; None when it was the last."""
    return policy_of_job(headers).delay_after(initial_retry(headers) + attempts)


def ttr_of_job(headers: Mapping[str, Any]) -> timedelta | None:
    """Return how long a consumer may hold the job, if a header has it."""
    ttr = headers.get("ttr")
    if not _is_number(ttr) or ttr != ttr:
        return None
    milliseconds = min(max(ttr * 1000, 1), MAX_TTR // MILLISECOND)
    return int(milliseconds) * _MIN_TTR


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


# Made once: `X | Y` makes a new one each time.
_NUMBERS: Final = (int, float)
MAX_DELAY: Final = timedelta(days=3652)
MAX_URL_LENGTH: Final = 2048
CODEC: Final = codec_named("json")


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


# Marks a field that no reply shows.
INTERNAL: Final = {"is_internal": True}


# Not frozen, as a bulk has a thousand of them: that takes three times as long to make one.
@dataclass(slots=True)
class NewJob:
    """A validated job, as it is stored; all times in milliseconds.

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
    expires_at: int | None = None
    expires_in: int | None = None
    batch: int | None = None
    # The lease of a member of that batch, which may add others after its end.
    lease: str | None = None


@dataclass(slots=True)
class AddedJob:
    """A job that was stored; its state is null if it has finished meanwhile.

    Without an outcome it was not stored: the topic has a job with this id, or its batch is closed.
    """

    job_id: str
    topic: str
    outcome: OfferOutcome | None = field(metadata=INTERNAL)
    state: JobState | None = None
    run_at: datetime | None = None
    is_batch_closed: bool = field(default=False, metadata=INTERNAL)


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it stands; ``retry`` counts failures so far."""

    job_id: str
    topic: str
    state: JobState
    retry: int
    run_at: datetime | None
    created_at: datetime
    url: str | None = field(default=None, repr=False)
    leased_until: datetime | None = None
    expires_at: datetime | None = None
    died_at: datetime | None = None
    dead_letter_id: int | None = None
    last_error: str = field(default="", repr=False)
    group: str | None = None
    batch: int | None = None


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The jobs of a batch that has finished, by outcome."""

    id: int
    total: int
    done: int
    dead: int
    dropped: int
    expired: int


@dataclass(frozen=True, slots=True)
class PoppedJob:
    """A job under a lease, and its batch; ``batchCounts`` are of the batch that has added it."""

    job_id: str
    body: Any = field(repr=False)
    attempt: int
    lease_token: str = field(repr=False)
    leased_until: datetime
    message_id: int = field(repr=False, metadata=INTERNAL)
    group: str | None = None
    batch_counts: BatchCounts | None = None
    batch: int | None = None


def read_headers(headers: str | None) -> dict[str, Any]:
    """Return stored headers; what another writer stored instead of an object counts as none."""
    found = json.loads(headers) if headers else {}
    return found if isinstance(found, dict) else {}


def batch_counts(headers: Mapping[str, Any]) -> BatchCounts | None:
    """Return the counts of the batch that has offered the job; None for other jobs."""
    given = headers.get("batch")
    if not isinstance(given, dict) or given.keys() != set(BatchCounts.__slots__):
        return None
    return BatchCounts(**given) if all(type(each) is int for each in given.values()) else None


def url_of(headers: Mapping[str, Any]) -> str | None:
    url = headers.get("url")
    return url if isinstance(url, str) else None
