"""Ladders: how long a failed job waits, as data on the topic or on the job itself."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, TypeGuard

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MILLISECOND
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
    if isinstance(step, int | float) and not isinstance(step, bool):
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
    return isinstance(value, int | float) and not isinstance(value, bool)
