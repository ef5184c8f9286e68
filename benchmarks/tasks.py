"""Tasks beside plain handlers of the same worker: ``python -m benchmarks.tasks``.

Each round drains the same backlog by a plain handler, by a task whose results are kept, and by one
whose results are not, in turns.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.shared.database import Connection, benchmark_database
from benchmarks.shared.machine import describe
from benchmarks.shared.reporting import Options, Report, Table
from benchmarks.shared.rounds import in_turns, ratios, spread

BACKEND: Final = "delayed_queue.tasks.DelayedQueueBackend"
TASKS: Final = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["kept"]},
    "unkept": {"BACKEND": BACKEND, "QUEUES": ["unkept"], "OPTIONS": {"RESULTS": None}},
}
# The least ratio to plain handlers.
BARS: Final = {"kept": 0.6, "unkept": 0.85}


def main() -> None:
    """Print the ratios; exit with 1 if a median of full counts is below its bar."""
    options = Options(".tasks", __doc__).size("rounds", 7, 1, "rounds of each way")
    parsed = options.size("messages", 10_000, 1_000, "messages of a drain").parse()
    apps = ("delayed_queue.tasks",)
    with benchmark_database(parsed.database_url, apps, TASKS=TASKS) as connection:
        report = Report(describe(connection))
        found = in_turns(parsed.rounds, _ways(connection, parsed))
    table = Table("Tasks beside handlers", ("results", "messages/s", "of handlers", "at least"))
    is_below = False
    for name, bar in BARS.items():
        each = ratios(found[name], found["plain"])
        is_below |= median(each) < bar
        table.add(name, spread(found[name]), spread(each, ".2f"), f"{bar}")
    report.tables.append(table)
    report.write(parsed)
    sys.exit(is_below and not parsed.quick)


def nothing(*args: Any) -> None:
    """Do nothing: as a handler, and as a task."""


def _ways(connection: Connection, options: Namespace) -> dict[str, Callable[[], float]]:
    """Return the drain of each kind, in messages a second."""
    from delayed_queue.codecs import codec_named
    from delayed_queue.handlers import Handler, Registry, registry

    plain = Registry()
    plain.add(Handler("plain", nothing, codec_named("json"), "plain|json"))
    return {
        name: partial(_drain, connection, options.messages, name, handlers)
        for name, handlers in (("plain", plain), ("kept", registry), ("unkept", registry))
    }


def _drain(connection: Connection, messages: int, queue: str, handlers: Any) -> float:
    from delayed_queue.worker import Worker, WorkerOptions

    connection.execute("TRUNCATE delayed_queue, delayed_queue_task_result")
    _offer(queue, messages)
    connection.execute("ANALYZE delayed_queue")
    worker = Worker(WorkerOptions(queues=(queue,), burst=True, cron=False), handlers)
    started_at = time.perf_counter()
    if (done := worker.run().done) != messages:
        raise RuntimeError(f"{done} of {messages} were handled.")
    return messages / (time.perf_counter() - started_at)


def _offer(queue: str, count: int) -> None:
    """Offer in one call: messages to the plain queue, tasks to the others."""
    from delayed_queue import DelayedQueue, ScheduledMessage
    from delayed_queue.tasks._api import task, task_backends

    if queue == "plain":
        payload = {"task": "benchmarks.tasks.nothing", "args": [1], "kwargs": {}}
        keys = (f"{number:036}" for number in range(count))
        DelayedQueue(queue).offer_batch(ScheduledMessage(key, payload) for key in keys)
        return
    alias = "default" if queue == "kept" else queue
    made: Any = task(nothing, queue_name=queue, backend=alias)
    # The worker finds a task by its path.
    globals()["nothing_"], made.func.__qualname__ = made, "nothing_"
    backend: Any = task_backends[alias]
    backend.enqueue_many(made, [(1,)] * count)


if __name__ == "__main__":
    # Under the name by which workers import the tasks.
    from benchmarks import tasks

    tasks.main()
