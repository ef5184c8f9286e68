"""Helpers of contract tests: threads that close their connections, and watched sleeps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

from django.db import connections

from delayed_queue import DelayedQueue, Envelope
from delayed_queue.db.wakeups import StopSignal

T = TypeVar("T")

SECOND: Final = timedelta(seconds=1)
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
MILLISECOND: Final = timedelta(milliseconds=1)
MICROSECOND: Final = timedelta(microseconds=1)
# Long enough for the slowest machine; a test that needs it has failed.
TIMEOUT: Final = 10.0


# A name and the keywords of DelayedQueue.
MakeQueue = Callable[..., DelayedQueue]


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Run in a new thread, which closes its database connections at the end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)
        finally:
            connections.close_all()

    threading.Thread(target=run, daemon=True).start()
    return future


class WatchedStop(StopSignal):
    """A stop signal that detects when a poller goes to sleep: the poller then needs its file."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slept_on = threading.Event()

    def fileno(self) -> int:
        self.is_slept_on.set()
        return super().fileno()

    def await_sleep(self) -> None:
        assert self.is_slept_on.wait(TIMEOUT), "no poller slept"


@contextmanager
def watched_stop() -> Iterator[WatchedStop]:
    stop = WatchedStop()
    try:
        yield stop
    finally:
        stop.set()
        stop.close()


def leased(queue: DelayedQueue) -> Envelope:
    """Lease the next message, which must be due."""
    envelope = queue.try_poll()
    assert envelope is not None, "nothing was due"
    return envelope


def polled_keys(queue: DelayedQueue, limit: int = 100) -> list[str]:
    return [envelope.key for envelope in queue.try_poll_many(limit)]
