"""This project's backend of Django's tasks: ``enqueue``, ``enqueue_many``, ``runqueueworker``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ours_tasks_settings")

import protocol
from ours import django_command, work


def tasks():
    import django

    django.setup()
    from ours_app import tasks

    return tasks


def offer(count: int) -> float:
    noop = tasks().noop
    return protocol.one_by_one(count, lambda: noop.enqueue(protocol.TEXT))


def bulk(count: int) -> float:
    noop = tasks().noop
    backend = noop.get_backend()
    return protocol.in_chunks(
        count, lambda size: backend.enqueue_many(noop, [(protocol.TEXT,)] * size)
    )


def pace(count: int, rate: float) -> None:
    stamped = tasks().stamped
    for moment in protocol.paced(count, rate):
        stamped.enqueue(moment)


if __name__ == "__main__":
    protocol.main(lambda: django_command("migrate", "--verbosity=0"), offer, bulk, pace, work)
