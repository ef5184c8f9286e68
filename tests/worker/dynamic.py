"""A source with a changing list of queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.db.statements import notify
from delayed_queue.db.wakeups import channel_of
from delayed_queue.handlers import Handler, Registry, Source
from delayed_queue.models import Message
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.running import SOON, handler_of

WAKE_CHANNEL: Final = "changes|wake"
HOUR: Final = timedelta(hours=1)


class Changing:
    """A source whose queues a test changes, and the messages handled from them."""

    def __init__(self, *names: str, function: Callable[[Envelope], Any] | None = None) -> None:
        self.names = list(names)
        self.options: dict[str, Any] = {}
        self.handled: list[tuple[str, str]] = []
        self._function = function or self._note
        self.made: dict[str, Handler] = {}

    def _note(self, envelope: Envelope) -> None:
        self.handled.append((envelope.queue, envelope.key))

    def __call__(self, using: str) -> Iterable[Handler]:
        return [handler_of(name, self._function, **self.options) for name in self.names]

    def add(self, name: str) -> None:
        self.names.append(name)
        notify("default", channel_of(WAKE_CHANNEL))

    def registry(self, *handlers: Handler) -> Registry:
        registry = Registry()
        for each in handlers:
            registry.add(each)
        registry.add_source(Source("changing", self, WAKE_CHANNEL))
        return registry

    def worker(self, *handlers: Handler, **options: Any) -> Worker:
        options = {"poll_interval": SOON, "cron": False, **options}
        return Worker(WorkerOptions(**options), self.registry(*handlers))


def offer(queue: str, count: int) -> None:
    DelayedQueue(queue).offer_batch(ScheduledMessage(f"k{n}", 1) for n in range(count))


def is_empty() -> bool:
    return not Message.objects.exists()
