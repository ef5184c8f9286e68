"""django-tasks-db and django-ox: ``enqueue``, and workers by their commands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ["PYTHONPATH"] = str(Path(__file__).parent)
os.environ["DJANGO_SETTINGS_MODULE"] = "django_peer_settings"

import django
import protocol
from django.core.management import call_command

IS_OX = os.environ["BENCH_PEER"] == "django_ox"


def tasks():
    django.setup()
    import django_peer_tasks

    return django_peer_tasks


def schema() -> None:
    django.setup()
    call_command("migrate", verbosity=0)


def offer(sizes) -> None:
    noop = tasks().noop
    for _ in sizes:
        noop.enqueue(protocol.TEXT)


def bulk(sizes) -> None:
    noop = tasks().noop
    for size in sizes:
        (by_its_own_call if IS_OX else in_a_transaction)(noop, size)


def by_its_own_call(noop, size: int) -> None:
    from django_ox.bulk import enqueue_many

    enqueue_many(noop, [((protocol.TEXT,), {})] * size)


def in_a_transaction(noop, size: int) -> None:
    from django.db import transaction

    with transaction.atomic():
        for _ in range(size):
            noop.enqueue(protocol.TEXT)


def pace(moments) -> None:
    stamped = tasks().stamped
    for moment in moments:
        stamped.enqueue(moment)


def work() -> None:
    # Replaced, not called: its children are started by the command line of this process.
    processes = ("--processes", str(protocol.PROCESSES)) if IS_OX else ()
    command = ("-m", "django", *protocol.OPTIONS["command"], *processes)
    os.execv(sys.executable, [sys.executable, *command])  # noqa: S606


if __name__ == "__main__":
    protocol.main(schema, offer, bulk, pace, work)
