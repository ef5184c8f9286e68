"""Priorities of tasks: each priority of a queue other than 0 has its own kind of messages."""

from __future__ import annotations

from functools import partial
from typing import Final

from django.db import Error, transaction

from delayed_queue.codecs import channel_of
from delayed_queue.db.resilience import never, repeat
from delayed_queue.facade import DelayedQueue
from delayed_queue.tasks.store import priorities_by_queue, use_priority


def kind_of_priority(queue: str, priority: int) -> str:
    """Return the kind of a queue's tasks of a priority: ``mail|json``, ``mail!7|json``."""
    return f"{queue}|json" if priority == 0 else f"{queue}!{priority}|json"


def split_kind(kind: str) -> tuple[str, int]:
    """Return queue and priority of a kind of tasks."""
    name, _, _ = kind.rpartition("|")
    queue, mark, priority = name.rpartition("!")
    try:
        return (queue, int(priority)) if mark else (name, 0)
    except ValueError:
        return name, 0


class TaskQueue(DelayedQueue):
    """The tasks of one priority; all priorities of a queue wake the same workers."""

    def __init__(self, name: str, priority: int, using: str) -> None:
        super().__init__(name, kind=kind_of_priority(name, priority), using=using)

    @property
    def _channel(self) -> str:
        return channel_of(kind_of_priority(self.name, 0))


class Priorities:
    """The priorities that queues have used, as far as this process knows."""

    def __init__(self, by_queue: dict[str, list[int]] | None = None) -> None:
        self._announced: set[tuple[str, str, int]] = set()
        self._by_queue = by_queue or {}

    def of(self, queue: str) -> list[int]:
        """Return the priorities of a queue, 0 included, the highest first."""
        return sorted({0, *self._by_queue.get(queue, ())}, reverse=True)

    def kinds(self, queue: str) -> list[str]:
        return [kind_of_priority(queue, each) for each in self.of(queue)]

    def announce(self, using: str, queue: str, priority: int) -> None:
        """Store that the queue uses the priority, before its first message is offered."""
        used = (using, queue, priority)
        if priority != 0 and used not in self._announced:
            repeat(using, partial(use_priority, queue, priority, using=using), doubt=never)
            transaction.on_commit(lambda: self._announced.add(used), using=using)

    def read(self, using: str) -> None:
        """Read what is stored; while the database is unavailable, nothing changes."""
        try:
            self._by_queue = priorities_by_queue(using=using)
        except Error:
            return
        self._announced = {
            (using, queue, each) for queue, some in self._by_queue.items() for each in some
        }

    def forget(self) -> None:
        self._announced.clear()
        self._by_queue = {}


priorities: Final = Priorities()
