"""Results that a test requires to exist."""

from __future__ import annotations

from typing import Any, TypeVar

import psycopg

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.messages import StoredMessage

T = TypeVar("T")


def present(answer: T | None) -> T:
    assert answer is not None
    return answer


def polled(queue: DelayedQueue) -> Envelope:
    return present(queue.try_poll())


def stored(queue: DelayedQueue, key: str) -> StoredMessage:
    return present(queue.read(key))


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of an error that Django has wrapped."""
    assert isinstance(error.__cause__, psycopg.Error)
    return error.__cause__.sqlstate


def only_row(cursor: Any) -> Any:
    return present(cursor.fetchone())
