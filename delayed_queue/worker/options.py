"""The options of ``manage.py runqueueworker``, validated."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.conf import check_interval, check_lease, get_settings
from delayed_queue.durations import check_duration
from delayed_queue.exceptions import InvalidConfiguration

MAX_COUNTS: Final = {
    "concurrency": 1000,
    "async_concurrency": 10_000,
    "batch_size": 10_000,
    "processes": 1000,
    "claims": 2,
    "max_messages": 10**18,
    "max_messages_per_process": 10**18,
    "max_memory_per_process": 10**9,
}
_DEMANDED: Final = ("concurrency", "async_concurrency", "batch_size", "processes")


def _default_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


# Connections of a worker process in addition to those of its handler threads and claims: lease
# keeper, heartbeat, chores, schedules, async ORM, and the last check before an outgoing call.
SERVICE_CONNECTIONS: Final = 6


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one worker process.

    ``queues``: in order of strict priority; empty means every queue with a handler, most overdue
    first, in turns. ``concurrency``: handler threads; ``async_concurrency``: tasks of the event
    loop. ``lease``: overrides the leases of handlers and settings. ``burst``: stop when nothing is
    due. ``max_messages``: stop after N deliveries. ``cron``: keep the schedules, unless ``burst``.
    ``processes``: processes of the supervisor. ``sourced``: the queues to serve of those that
    sources name; None means all, unless ``queues`` are named. ``only_sourced``: no other queues.
    ``claims``: claims at a time, 1 or 2; None means 2, but 1 with one thread.
    ``max_messages_per_process``, ``max_memory_per_process`` in MiB: replace a process after that.
    """

    queues: tuple[str, ...] = ()
    concurrency: int = field(default_factory=lambda: get_settings().CONCURRENCY)
    async_concurrency: int = field(default_factory=lambda: get_settings().ASYNC_CONCURRENCY)
    batch_size: int = field(default_factory=lambda: get_settings().BATCH_SIZE)
    lease: timedelta | None = None
    poll_interval: timedelta = field(default_factory=lambda: get_settings().POLL_INTERVAL)
    burst: bool = False
    max_messages: int | None = None
    shutdown_timeout: timedelta = field(default_factory=lambda: get_settings().SHUTDOWN_TIMEOUT)
    worker_id: str = field(default_factory=_default_id)
    using: str = DEFAULT_DB_ALIAS
    cron: bool = True
    processes: int = 1
    sourced: tuple[str, ...] | None = None
    only_sourced: bool = False
    claims: int | None = None
    max_messages_per_process: int | None = None
    max_memory_per_process: int | None = None

    def __post_init__(self) -> None:
        for name, most in MAX_COUNTS.items():
            _check_count(name, getattr(self, name), most)
        if self.lease is not None:
            object.__setattr__(self, "lease", check_lease(self.lease))
        object.__setattr__(self, "poll_interval", check_interval(self.poll_interval))
        until_stop = check_duration("shutdown_timeout", self.shutdown_timeout, most=timedelta.max)
        object.__setattr__(self, "shutdown_timeout", until_stop)
        if len(set(self.queues)) < len(self.queues):
            raise InvalidConfiguration(f"A queue is named twice: {', '.join(self.queues)}.")
        if self.only_sourced and self.queues:
            raise InvalidConfiguration("Name queues, or ask for dynamic queues only, not both.")

    @property
    def most_claims(self) -> int:
        """The maximum number of claims at a time.

        Two may overtake each other, but one thread must handle messages by due time.
        """
        return self.claims or min(self.concurrency, 2)

    @property
    def pooled_connections(self) -> int:
        """The connections a process may take from a pool; those of its claims are not from it."""
        return self.concurrency + SERVICE_CONNECTIONS

    @property
    def is_finite(self) -> bool:
        """True if a process ends by itself."""
        return self.burst or self.max_messages is not None

    @property
    def slots(self) -> int:
        """The maximum number of messages in flight in a process."""
        return self.concurrency + self.async_concurrency

    @property
    def asks_sources(self) -> bool:
        """True if sources are queried for queues."""
        return bool(self.sourced) if self.sourced is not None else not self.queues


def _check_count(name: str, value: Any, most: int) -> None:
    least = 0 if name == "processes" else 1
    is_left_out = value is None and name not in _DEMANDED
    if not is_left_out and (type(value) is not int or not least <= value <= most):
        raise InvalidConfiguration(f"{name} must be from {least} to {most}, not {value!r}.")
