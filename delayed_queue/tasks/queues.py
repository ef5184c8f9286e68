"""The queue of tasks of one priority, announced to those who serve all priorities."""

from __future__ import annotations

from delayed_queue.codecs import channel_of
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.tasks.options import kind_of_priority


class TaskQueue(DelayedQueue):
    """Messages of a priority other than 0 have a kind of their own."""

    def __init__(self, name: str, priority: int, using: str) -> None:
        super().__init__(name, kind=kind_of_priority(name, priority), using=using)

    @property
    def _channel(self) -> str:
        return channel_of(kind_of_priority(self.name, 0))
