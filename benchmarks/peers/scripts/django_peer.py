"""The Django peers: django-tasks-db, django-ox and django-q2; workers by their commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = str(Path(__file__).parent)
os.environ["DJANGO_SETTINGS_MODULE"] = "django_peer_settings"

import django
import protocol

PEER = os.environ["BENCH_PEER"]


def django_command(*arguments: str) -> None:
    from django.core.management import execute_from_command_line

    execute_from_command_line([str(Path(__file__).with_name("manage.py")), *arguments])


def enqueue(name: str):
    """Return the call that offers one job of that name."""
    django.setup()
    import django_peer_tasks

    if PEER == "django_q":
        from django_q.tasks import async_task

        return lambda argument: async_task(f"django_peer_tasks.{name}", argument)
    return getattr(django_peer_tasks, name).enqueue


def offer(count: int) -> float:
    noop = enqueue("noop")
    return protocol.one_by_one(count, lambda: noop(protocol.TEXT))


def bulk(count: int) -> float:
    noop = enqueue("noop")
    from django.db import transaction

    def in_a_transaction(size: int) -> None:
        with transaction.atomic():
            for _ in range(size):
                noop(protocol.TEXT)

    def by_its_own_call(size: int) -> None:
        from django_ox.bulk import enqueue_many
        from django_peer_tasks import noop as task

        enqueue_many(task, [((protocol.TEXT,), {})] * size)

    own = by_its_own_call if PEER == "django_ox" else in_a_transaction
    return protocol.in_chunks(count, own)


def pace(count: int, rate: float) -> None:
    stamped = enqueue("stamped")
    for moment in protocol.paced(count, rate):
        stamped(moment)


def work() -> None:
    # Replaced, not called: commands with children start those as they were started themselves.
    manage = str(Path(__file__).with_name("manage.py"))
    arguments = list(protocol.OPTIONS["command"])
    if PEER == "django_ox":
        arguments += ["--processes", str(protocol.PROCESSES)]
    os.execv(sys.executable, [sys.executable, manage, *arguments])  # noqa: S606


if __name__ == "__main__":
    protocol.main(lambda: django_command("migrate", "--verbosity=0"), offer, bulk, pace, work)
