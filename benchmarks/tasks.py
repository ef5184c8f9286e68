"""Tasks against plain handlers of the same queue: ``python -m benchmarks.tasks``.

Each round drains the same number of messages in three ways, in turns: by a plain handler, by a task
whose results are kept, by one whose results are not. Each ratio is of the two rates in one round.
Offers are compared by the CPU time of producer and server, which other work leaves as it is.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import psutil

from benchmarks.database import benchmark_database, embedded_server

BACKLOG: Final = 10_000
ROUNDS: Final = 7
_CALLS: Final = 20
_BACKEND: Final = "delayed_queue.tasks.DelayedQueueBackend"
TASKS: Final = {
    "default": {"BACKEND": _BACKEND, "QUEUES": ["kept"]},
    "unkept": {"BACKEND": _BACKEND, "QUEUES": ["unkept"], "OPTIONS": {"RESULTS": None}},
}
# What is measured, and the least it may be of plain handlers.
BARS: Final = {"kept": 0.6, "unkept": 0.85, "enqueue_many": 0.8}


def main() -> None:
    """Print the rates and the ratios of all rounds; exit 1 if a median is below its bar."""
    server = os.environ.get("DATABASE_URL") or embedded_server()
    with benchmark_database(server, apps=["delayed_queue.tasks"], TASKS=TASKS):
        ratios = _measured()
    for name, found in ratios.items():
        middle = statistics.median(found)
        sys.stdout.write(
            f"{name:14} {middle:.2f} of plain ({min(found):.2f}-{max(found):.2f}), "
            f"bar {BARS[name]}\n"
        )
    sys.exit(any(statistics.median(found) < BARS[name] for name, found in ratios.items()))


def nothing(*args: Any) -> None:
    """Do nothing: as a handler, and as a task."""


def _measured() -> dict[str, list[float]]:
    ways, offers = _ways(), _offers()
    found: dict[str, list[float]] = {name: [] for name in BARS}
    for number in range(ROUNDS + 1):
        plain_offer, many = offers["plain"](), offers["enqueue_many"]()
        plain = ways["plain"]()
        rates = {name: ways[name]() for name in ("kept", "unkept")}
        if number:  # the first is to warm up
            found["enqueue_many"].append(many / plain_offer)
            for name, rate in rates.items():
                found[name].append(rate / plain)
            sys.stderr.write(
                f"plain {plain:,.0f}/s {rates} offers {plain_offer:,.0f} {many:,.0f}\n"
            )
    return found


def _ways() -> dict[str, Callable[[], float]]:
    """Return what drains a backlog in each way, and returns its rate."""
    from delayed_queue.codecs import codec_named
    from delayed_queue.handlers import Handler, Registry, registry
    from delayed_queue.worker.options import WorkerOptions
    from delayed_queue.worker.worker import Worker

    plain = Registry()
    plain.add(Handler("plain", nothing, codec_named("json"), "plain|json"))

    def drain(queue: str, handlers: Any) -> float:
        _fill(queue)
        options = WorkerOptions(queues=(queue,), burst=True, cron=False)
        worker, began_at = Worker(options, handlers), time.perf_counter()
        done = worker.run().done
        assert done == BACKLOG, f"{done} of {BACKLOG} done"  # noqa: S101
        return BACKLOG / (time.perf_counter() - began_at)

    return {
        "plain": lambda: drain("plain", plain),
        "kept": lambda: drain("kept", registry),
        "unkept": lambda: drain("unkept", registry),
    }


def _offers() -> dict[str, Callable[[], float]]:
    """Return what offers thousands in each way, and returns how many in a second of CPU time."""
    from delayed_queue import DelayedQueue, ScheduledMessage
    from delayed_queue.tasks._api import task_backends
    from delayed_queue.tasks.options import ids_at

    queue, task = DelayedQueue("offered"), _task("kept")
    backend: Any = task_backends["default"]

    def timed(call: Callable[[], Any]) -> float:
        _empty()
        before = _cpu_seconds()
        for _ in range(_CALLS):
            call()
        return _CALLS * 1000 / (_cpu_seconds() - before)

    def offer() -> None:
        payload = {"task": task.module_path, "args": [1], "kwargs": {}}
        ids = islice(ids_at(int(time.time() * 1000)), 1000)
        queue.offer_batch([ScheduledMessage(each, payload) for each in ids])

    return {
        "plain": lambda: timed(offer),
        "enqueue_many": lambda: timed(lambda: backend.enqueue_many(task, [(1,)] * 1000)),
    }


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of the server's, behind its connection, so far."""
    from django.db import connection

    connection.ensure_connection()
    server = psutil.Process(connection.connection.info.backend_pid).cpu_times()
    return time.process_time() + server.user + server.system


def _task(queue: str) -> Any:
    from delayed_queue.tasks._api import task

    alias = "default" if queue == "kept" else queue
    return task(nothing, queue_name=queue, backend=alias)


def _fill(queue: str) -> None:
    from django.db import connection

    from delayed_queue import DelayedQueue, ScheduledMessage
    from delayed_queue.tasks._api import task_backends

    _empty()
    if queue == "plain":
        DelayedQueue(queue).offer_batch(
            [ScheduledMessage(f"{each:036}", {"task": "x", "args": []}) for each in range(BACKLOG)]
        )
    else:
        task = _task(queue)
        globals()["nothing_"] = task
        task.func.__qualname__ = "nothing_"  # where it is found by its path
        backend: Any = task_backends[task.backend]
        backend.enqueue_many(task, [()] * BACKLOG)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE delayed_queue")


def _empty() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayed_queue, delayed_queue_task_result")


if __name__ == "__main__":
    # Under the name by which workers import it.
    from benchmarks import tasks

    tasks.main()
