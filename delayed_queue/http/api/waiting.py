"""Pops that wait: those of a topic form a line, and one thread claims for all lines.

The thread sleeps until a job is announced or due. WSGI threads and all event loops of the process
share it, with its one connection.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from django.core.handlers.wsgi import WSGIRequest
from django.db import Error
from django.http import HttpRequest

from delayed_queue.db.own import using_own_connection
from delayed_queue.db.resilience import is_unavailable
from delayed_queue.db.wakeups import Listener, WakeChannel
from delayed_queue.http.api.clients import is_gone, socket_of, while_connected
from delayed_queue.http.api.pool import submit
from delayed_queue.http.api.problems import unavailable
from delayed_queue.http.conf import api_settings
from delayed_queue.logs import log

if TYPE_CHECKING:  # an asgi.py imports this before the apps are ready
    from delayed_queue.http.jobs.consuming import Pop
    from delayed_queue.http.jobs.jobs import PoppedJob

Jobs = list["PoppedJob"]

# Longest wait for a client whose connection the server does not show: it may be gone.
BLIND_SECONDS: Final = 5.0


@dataclass(slots=True, eq=False)
class Waiter:
    """A pop in line; who sets or cancels ``jobs`` first decides how it ends."""

    pop: Pop
    jobs: Future[Jobs] = field(default_factory=Future)

    def receive(self, jobs: Jobs) -> None:
        """Take the jobs; those for a client that has gone are given back."""
        if self.jobs.set_running_or_notify_cancel():
            self.jobs.set_result(jobs)
        elif jobs:
            submit(self.pop.give_back, jobs)

    def fail(self, error: Exception) -> None:
        if self.jobs.set_running_or_notify_cancel():
            self.jobs.set_exception(error)


@dataclass(slots=True, eq=False)
class Line:
    """The pops that wait for one topic, or one shard of it, in the order of their arrival.

    ``next_at``: the time of the next claim, by ``time.monotonic()``.
    """

    waiters: list[Waiter] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    next_at: float = 0.0

    def remaining(self) -> list[Waiter]:
        return [each for each in list(self.waiters) if not each.jobs.done()]


class WaitingPops:
    """The pops that wait in this process; :data:`waiting_pops` is the only instance."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything, as a child process must: it has only one thread of its parent."""
        self.is_draining = self._is_closed = False
        self._rung = WakeChannel()
        self._thread: threading.Thread | None = None
        # Guards the thread and the lines.
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, int | None], Line] = {}

    @property
    def waiting(self) -> int:
        """The number of pops in line."""
        return sum(len(each.waiters) for each in list(self._lines.values()))

    async def wait_for(self, request: HttpRequest, pop: Pop, timeout: float) -> Jobs:
        """Return the jobs of the pop as soon as some are due; none after the timeout.

        Jobs that were claimed for a client that has disconnected are given back, uncounted. Under a
        WSGI server that does not show its connections, the wait ends after BLIND_SECONDS.
        """
        if isinstance(request, WSGIRequest) and socket_of(request) is None:
            timeout = min(timeout, BLIND_SECONDS)
        found = await while_connected(request, partial(self._wait, pop, timeout)) or []
        if not found or not is_gone(request):
            return found
        submit(pop.give_back, found)
        return []

    def drain(self) -> None:
        """End every wait, now and from now on, because the process stops.

        A running claim is awaited, and its jobs are returned. A signal handler may call this, so it
        takes no lock.
        """
        self.is_draining = True
        self._rung.wake()

    def close(self) -> None:
        """End every wait and the thread; a later pop starts a new one."""
        self._is_closed = True
        self.drain()
        with self._lock:  # a pop may be starting the thread
            thread = self._thread
        if thread is not None:
            thread.join()
        self._thread, self._is_closed, self.is_draining = None, False, False

    async def _wait(self, pop: Pop, timeout: float) -> Jobs:
        if (pop.topic, pop.shard) not in self._lines:
            # No pop is waiting: claim at once, in parallel with other requests.
            found = await _received(pop, submit(pop.claim))
            if found:
                return found
        if timeout <= 0 or self.is_draining:
            return []
        waiter = Waiter(pop)
        self._join(waiter)
        try:
            return await _received(pop, waiter.jobs, timeout)
        finally:
            self._leave(waiter)

    def _join(self, waiter: Waiter) -> None:
        settings, pop = api_settings(), waiter.pop
        with self._lock:
            if self.waiting >= settings.WAITERS:
                raise unavailable("too_many_waiters", "Too many pops are waiting in this process.")
            line = self._lines.setdefault((pop.topic, pop.shard), Line())
            line.waiters.append(waiter)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, args=[pop.using], name="delayed-queue-pops", daemon=True
                )
                self._thread.start()
        self._rung.wake()

    def _leave(self, waiter: Waiter) -> None:
        key = waiter.pop.topic, waiter.pop.shard
        with self._lock:
            line = self._lines[key]
            line.waiters.remove(waiter)
            if not line.waiters:
                del self._lines[key]

    # In the thread

    def _run(self, using: str) -> None:
        own = using_own_connection(using, application_name="delayed_queue_pops")
        with own, Listener([], using) as listener:
            listener.announced()  # of before the first wait
            while not self._is_closed:
                self._rung.clear()
                lines = self._waiting_lines()
                _listen(listener, lines)
                self._serve_due(listener, lines)
                if not lines:
                    select.select([self._rung], [], [])
                elif not self.is_draining:
                    pause = min(each.next_at for each in lines) - time.monotonic()
                    listener.wait(pause, self._rung)
        self._waiting_lines()

    def _waiting_lines(self) -> list[Line]:
        """Return the lines; end their waits first if the process stops."""
        with self._lock:
            lines = list(self._lines.values())
        waiters = [each for line in lines for each in line.remaining()] if self.is_draining else []
        for each in waiters:
            each.receive([])
        return [each for each in lines if each.remaining()]

    def _serve_due(self, listener: Listener, lines: list[Line]) -> None:
        announced = listener.announced()
        if announced is None:
            log(logging.WARNING, "listener_lost")
        for line in lines:
            is_announced = announced is None or not announced.isdisjoint(line.kinds)
            if is_announced or line.next_at <= time.monotonic():
                self._serve(listener, line, lines)

    def _serve(self, listener: Listener, line: Line, lines: list[Line]) -> None:
        """Claim for the pops of the line while something is due, in their order."""
        try:
            while waiters := line.remaining():
                pop = waiters[0].pop
                line.kinds = pop.kinds()
                # First, so that a job that is added after the claim is announced.
                _listen(listener, lines)
                found = pop.claim()
                if not found:
                    line.next_at = time.monotonic() + pop.next_in()
                    return
                waiters[0].receive(found)
        # The database is down, or the claim is invalid: every pop concerned gets the error.
        except Exception as error:
            for each in lines if is_unavailable(error) else [line]:
                for waiter in each.remaining():
                    waiter.fail(error)


def _listen(listener: Listener, lines: Iterable[Line]) -> None:
    # After a lost connection the next wait listens.
    with suppress(Error):
        listener.listen_to(kind for line in lines for kind in line.kinds)


async def _received(pop: Pop, coming: Future[Jobs], timeout: float | None = None) -> Jobs:
    """Return the jobs, none after the timeout; if the caller is cancelled, give them back."""
    jobs = asyncio.wrap_future(coming)
    try:
        await asyncio.wait([jobs], timeout=timeout)
        return [] if coming.cancel() else await jobs
    except asyncio.CancelledError:
        # A claim that runs in a thread cannot be cancelled.
        if not coming.cancel():
            coming.add_done_callback(partial(_give_back, pop))
        raise


def _give_back(pop: Pop, done: Future[Jobs]) -> None:
    if done.exception() is None and done.result():
        submit(pop.give_back, done.result())  # in a thread: this may be an event loop


waiting_pops: Final = WaitingPops()

os.register_at_fork(after_in_child=waiting_pops.reset)
