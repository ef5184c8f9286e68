"""Handler threads: what is claimed goes in, what was handled comes out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Final

from asgiref.sync import async_to_sync
from django.db import connections

from delayed_queue.wakeups import Doorbell
from delayed_queue.workers.lanes import Delivery

# How often a busy thread looks whether its connections have outlived CONN_MAX_AGE. After a
# database error it looks at once, and when it runs out of work too.
TIDY_SECONDS: Final = 1.0


class Executor:
    """Threads that run handlers.

    The queue between is a C-level SimpleQueue and the results a deque: a hand-over costs well
    under a microsecond, and the bell is rung only when the worker says that it sleeps.
    Threads are daemons: a handler that never returns must not keep the process alive.
    """

    def __init__(self, concurrency: int, bell: Doorbell) -> None:
        self._inbox: SimpleQueue[Delivery | None] = SimpleQueue()
        self._finished: deque[Delivery] = deque()
        self._bell = bell
        self.worker_sleeps = False
        # Moving average of a handler's seconds, the basis of how much to claim ahead.
        self.seconds_each = 0.05
        self._threads = [
            threading.Thread(target=self._serve, name=f"handler-{number}", daemon=True)
            for number in range(concurrency)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self._inbox.put(delivery)

    def finished(self) -> Iterator[Delivery]:
        """Yield and forget the deliveries handled since the last call."""
        while self._finished:
            yield self._finished.popleft()

    def has_finished(self) -> bool:
        return bool(self._finished)

    def take_back(self) -> list[Delivery]:
        """Return the deliveries that no thread has started, and start no more of them."""
        unstarted = []
        try:
            while True:
                delivery = self._inbox.get_nowait()
                if delivery is not None:
                    unstarted.append(delivery)
        except Empty:
            return unstarted

    def stop(self) -> None:
        """Let each thread end after the handler it is in."""
        for _ in self._threads:
            self._inbox.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the threads, so that they close their connections before the process ends."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _serve(self) -> None:
        tidied_at = time.monotonic()
        try:
            while True:
                if self._inbox.empty():
                    tidy_connections(idle=True)
                delivery = self._inbox.get()
                if delivery is None:
                    return
                started_at = time.monotonic()
                delivery.error = _handle(delivery)
                ended_at = time.monotonic()
                self.seconds_each += (ended_at - started_at - self.seconds_each) / 16
                is_time = ended_at - tidied_at > TIDY_SECONDS
                tidy_connections(idle=is_time)
                tidied_at = ended_at if is_time else tidied_at
                self._finished.append(delivery)
                if self.worker_sleeps:
                    self.worker_sleeps = False  # one ring is enough
                    self._bell.ring()
        finally:
            connections.close_all()


def _handle(delivery: Delivery) -> BaseException | None:
    """Run the handler; return what it raised."""
    handler = delivery.lane.handler
    try:
        if handler.is_async:
            async_to_sync(handler.function)(delivery.envelope)
        else:
            handler.function(delivery.envelope)
    # Everything: a SystemExit that ended this thread would leave its message leased and
    # renewed for ever.
    except BaseException as error:
        return error
    return None


def tidy_connections(*, idle: bool) -> None:
    """Close this thread's connections that broke or, when idle, outlived CONN_MAX_AGE.

    Django does this around each request. Here, with the default CONN_MAX_AGE of 0, it would
    mean a new connection for each message; so age counts only between bursts of work.
    """
    for connection in connections.all(initialized_only=True):
        if idle or connection.errors_occurred:
            connection.close_if_unusable_or_obsolete()
