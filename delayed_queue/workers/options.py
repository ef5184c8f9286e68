"""What a worker is told: the options of ``manage.py runqueueworker``, validated."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.conf import check_interval, check_lease, get_settings
from delayed_queue.exceptions import InvalidConfiguration


def _default_id() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How one worker process claims and handles.

    ``queues``: in order of priority; empty stands for every queue with a handler.
    ``concurrency``: handler threads; ``async_concurrency``: tasks of the event loop.
    ``lease``: overrides the leases of handlers and settings. ``burst``: stop when nothing is
    due. ``max_messages``: stop after that many deliveries. ``cron``: keep the schedules of code
    and operators too, unless ``burst``. ``processes``: how many a supervisor is to start.
    ``sourced``: the queues to take of those that sources name; None takes all, unless ``queues``
    are named. ``only_sourced``: no others.
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

    def __post_init__(self) -> None:
        _check_count("concurrency", self.concurrency, 1000)
        _check_count("async_concurrency", self.async_concurrency, 10_000)
        _check_count("batch_size", self.batch_size, 10_000)
        if self.processes:
            _check_count("processes", self.processes, 1000)
        if self.max_messages is not None:
            _check_count("max_messages", self.max_messages, 2**63)
        if self.lease is not None:
            check_lease(self.lease)
        check_interval(self.poll_interval)
        if self.shutdown_timeout < timedelta(0):
            raise InvalidConfiguration(
                f"shutdown_timeout must be 0 or more, not {self.shutdown_timeout!r}."
            )
        if len(set(self.queues)) < len(self.queues):
            raise InvalidConfiguration(f"A queue is named twice: {', '.join(self.queues)}.")
        if self.only_sourced and self.queues:
            raise InvalidConfiguration("Either queues are named, or none but sourced ones wanted.")

    @property
    def asks_sources(self) -> bool:
        """Whether sources are asked for queues at all."""
        return bool(self.sourced) if self.sourced is not None else not self.queues


def _check_count(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidConfiguration(f"{name} must be from 1 to {most}, not {value!r}.")
