"""This project's queue: ``offer_or_update``, ``offer_batch``, ``manage.py runqueueworker``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["DJANGO_SETTINGS_MODULE"] = "ours_app.settings"

import django
import protocol
from django.core.management import call_command, execute_from_command_line


def queue(name: str):
    django.setup()
    from delayed_queue import DelayedQueue

    return DelayedQueue(name)


def schema() -> None:
    django.setup()
    call_command("migrate", verbosity=0)


def offer(sizes) -> None:
    benchmark = queue("benchmark")
    for _ in sizes:
        benchmark.offer_or_update(protocol.key(), {"text": protocol.TEXT})


def bulk(sizes) -> None:
    benchmark = queue("benchmark")
    from delayed_queue import ScheduledMessage

    for size in sizes:
        benchmark.offer_batch(
            ScheduledMessage(protocol.key(), {"text": protocol.TEXT}, group=protocol.group())
            for _ in range(size)
        )


def pace(moments) -> None:
    stamped = queue("stamped")
    for moment in moments:
        stamped.offer_or_update(protocol.key(), moment)


def work() -> None:
    queues = ("--queue", "benchmark", "--queue", "stamped")
    processes = ("--processes", str(protocol.PROCESSES)) if protocol.PROCESSES > 1 else ()
    arguments = protocol.OPTIONS.get("arguments", ())
    execute_from_command_line(["manage.py", "runqueueworker", *queues, *processes, *arguments])


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, pace, work)
