"""Workers: in this process for one queue, or ``runqueueworker`` in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.processes import cpu_seconds, running, wait_until


def worker_for(queue: str, handle: Callable[[Any], Any], groups: Any = None, **options: Any) -> Any:
    """Return a worker in this process that has one handler."""
    # Django's models cannot be imported before it is configured.
    from delayed_queue.codecs import codec_named, kind_of
    from delayed_queue.handlers import Handler, Registry
    from delayed_queue.worker import Worker, WorkerOptions

    codec, registry = codec_named("bytes"), Registry()
    registry.add(Handler(queue, handle, codec, kind_of(queue, codec), groups=groups))
    return Worker(WorkerOptions(queues=(queue,), cron=False, **options), registry)


@contextmanager
def working(worker: Any) -> Iterator[None]:
    """Run the worker in a thread; stop it at the end."""
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


@dataclass(slots=True)
class WorkerProcess:
    """A running ``runqueueworker`` whose handler writes down when it was called."""

    process: subprocess.Popen[Any]
    directory: Path

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process.pid)

    def calls(self) -> list[tuple[float, float]]:
        """Return when each message was offered and when its handler was called, in seconds."""
        stamps = self.directory / "stamps"
        lines = stamps.read_text().splitlines() if stamps.exists() else []
        return [(float(offered), float(called)) for offered, called in map(str.split, lines)]

    def wait_for_calls(self, count: int) -> None:
        log = self.directory / "log"
        wait_until(lambda: self.count_calls() >= count, self.process, log, pause=0.05)

    def count_calls(self) -> int:
        stamps = self.directory / "stamps"
        return stamps.read_bytes().count(b"\n") if stamps.exists() else 0


@contextmanager
def worker_process(conninfo: str, *arguments: str, **settings: Any) -> Iterator[WorkerProcess]:
    """Run ``runqueueworker`` with its defaults, these arguments and these settings."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        environment = worker_environment(conninfo, directory, **settings)
        command = ("-m", "django", "runqueueworker", *arguments)
        with running(*command, environment=environment, log=directory / "log") as process:
            yield WorkerProcess(process, directory)


def worker_environment(conninfo: str, directory: Path, **settings: Any) -> dict[str, str]:
    """Return the environment of the programs in ``benchmarks/workerapp``."""
    return {
        **os.environ, "DJANGO_SETTINGS_MODULE": "benchmarks.workerapp.settings",
        "BENCHMARK_CONNINFO": conninfo, "BENCHMARK_SETTINGS": json.dumps(settings),
        "BENCHMARK_STAMPS": str(directory / "stamps"),
    }  # fmt: skip


def offer_stamped(rate: float, seconds: float) -> None:
    """Offer messages at a rate whose payload is the time of their offer."""
    from delayed_queue import DelayedQueue

    queue, began, prefix = DelayedQueue("benchmark"), time.monotonic(), time.time_ns()
    for number in range(int(rate * seconds)):
        # By the clock, not by pauses: a late offer does not delay the next ones.
        time.sleep(max(began + number / rate - time.monotonic(), 0))
        queue.offer_or_update(f"{prefix}-{number}", time.time())
