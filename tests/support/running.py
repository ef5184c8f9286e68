"""Workers in this process, with handlers of a test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from delayed_queue.codecs import codec_named, kind_of
from delayed_queue.handlers import Handler, Registry
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions

SOON = timedelta(milliseconds=100)


def handler_of(name: str, function: Callable[[Any], Any], **options: Any) -> Handler:
    codec = codec_named("json")
    return Handler(name, function, codec, kind_of(name, codec), **options)


def registry_of(**functions: Callable[[Any], Any]) -> Registry:
    return registry_with(*(handler_of(name, each) for name, each in functions.items()))


def registry_with(*handlers: Handler) -> Registry:
    registry = Registry()
    for handler in handlers:
        registry.add(handler)
    return registry


def worker_with(*handlers: Handler, **options: Any) -> Worker:
    """Return a worker of these handlers, which polls often and installs no schedules."""
    options = {"poll_interval": SOON, "cron": False, **options}
    return Worker(WorkerOptions(**options), registry_with(*handlers))


@contextmanager
def running(worker: Worker) -> Iterator[threading.Thread]:
    """Run the worker in a thread, and stop it at the end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield thread
    finally:
        worker.stop()
        thread.join(timeout=20)
        assert not thread.is_alive()
