"""This project's queue: ``offer_or_update``, ``offer_batch``, ``manage.py runqueueworker``."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ours_settings")

import protocol

QUEUE = "benchmark"
STAMPED = "benchmark-stamped"


def django_command(*arguments: str) -> None:
    from django.core.management import execute_from_command_line

    execute_from_command_line(["manage.py", *arguments])


def queue(name: str):
    import django

    django.setup()
    from delayed_queue import DelayedQueue

    return DelayedQueue(name)


def keys():
    start = f"{os.getpid()}-"
    return (start + str(number) for number in itertools.count())


def offer(count: int) -> float:
    benchmark, names = queue(QUEUE), keys()
    return protocol.one_by_one(
        count, lambda: benchmark.offer_or_update(next(names), {"text": protocol.TEXT})
    )


def bulk(count: int) -> float:
    benchmark, names = queue(QUEUE), keys()
    from delayed_queue import ScheduledMessage

    def offer_batch(size: int) -> None:
        batch = [
            ScheduledMessage(next(names), {"text": protocol.TEXT}, group=protocol.group())
            for _ in range(size)
        ]
        benchmark.offer_batch(batch)

    return protocol.in_chunks(count, offer_batch)


def pace(count: int, rate: float) -> None:
    stamped, names = queue(STAMPED), keys()
    for moment in protocol.paced(count, rate):
        stamped.offer_or_update(next(names), moment)


def work() -> None:
    processes = ["--processes", str(protocol.PROCESSES)] if protocol.PROCESSES > 1 else []
    django_command("runqueueworker", *protocol.OPTIONS.get("arguments", []), *processes)


if __name__ == "__main__":
    protocol.main(lambda: django_command("migrate", "--verbosity=0"), offer, bulk, pace, work)
