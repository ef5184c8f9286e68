"""Workers on tables of a newer release, which only adds, or an older one (O16).

This release plays the one before; ``tests.rolling`` is the one after. Thus the tests show that its
workers run with the next release, without another release installed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.process.supervisor import EXIT_CONFIGURATION
from tests.rolling.settings import MIGRATION_MODULES
from tests.support.processes import children_of, wait_until, worker
from tests.support.sampling import sample
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

NEW_RELEASE = {"DJANGO_SETTINGS_MODULE": "tests.rolling.settings"}


def migrate(name: str) -> None:
    with override_settings(MIGRATION_MODULES=MIGRATION_MODULES):
        call_command("migrate", "delayed_queue", name, verbosity=0)


@pytest.fixture
def rolling() -> Iterator[None]:
    """Restore this release's tables after the migrations of the test."""
    try:
        yield
    finally:
        migrate("0001_initial")


def offer_until(is_enough: Event) -> list[str]:
    """Offer to two queues, as the release before does, until the event is set; return the keys."""
    keys: list[str] = []
    try:
        while not is_enough.is_set():
            batch = [f"k{len(keys) + each}" for each in range(20)]
            DelayedQueue("ledger").offer_batch([ScheduledMessage(key, 1) for key in batch])
            DelayedQueue("conduct").offer_or_update(f"fails{len(keys)}", "fail")
            keys += batch
            is_enough.wait(0.02)
    finally:
        connections.close_all()
    return keys


def handled() -> set[str]:
    return set(Effect.objects.filter(queue="ledger").values_list("key", flat=True))


@pytest.mark.usefixtures("rolling")
def test_o16_workers_of_the_release_before_go_on_and_start_on_what_only_adds() -> None:
    is_enough = Event()
    queues = ("--queue", "ledger", "--queue", "conduct")
    with ThreadPoolExecutor(1) as pool, worker(*queues, "--processes", "2") as process:
        offered = pool.submit(offer_until, is_enough)
        try:
            wait_until(lambda: Effect.objects.count() > 100)
            migrate("0003_index_compat1")
            first = children_of(process)
            before = Effect.objects.count()
            wait_until(lambda: Effect.objects.count() > before + 100)
            # A worker that finds the newer tables at its start replaces it.
            os.kill(first[0], signal.SIGKILL)
            wait_until(lambda: process.has_said("event=schema_differs newer="))
            (new,) = set(children_of(process)) - set(first)
            wait_until(lambda: Effect.objects.filter(pid=new).exists())
        finally:
            is_enough.set()
        keys = offered.result()
        wait_until(lambda: not Message.objects.exists())
        said = process.said()
    assert 'newer="0002_more_compat1, 0003_index_compat1"' in said
    assert "database_unavailable" not in said
    assert handled() == set(keys)
    assert DeadLetter.objects.count() == len(keys) // 20


def test_o16_a_new_worker_starts_without_what_it_does_not_need() -> None:
    migrate("0002_more_compat1")
    DelayedQueue("ledger").offer_or_update("k", 1)
    try:
        with worker("--queue", "ledger", "--burst", "--processes", "0", **NEW_RELEASE) as process:
            code, output = process.ended()
    finally:
        migrate("0001_initial")
    assert code == 0
    assert "event=schema_differs missing=0003_index_compat1" in output
    assert handled() == {"k"}


@pytest.mark.parametrize("processes", sample(["0", "1"], "1"))
def test_o16_a_new_worker_refuses_tables_without_what_it_needs(processes: str) -> None:
    with worker("--queue", "ledger", "--processes", processes, **NEW_RELEASE) as process:
        code, output = process.ended()
    assert code == EXIT_CONFIGURATION
    assert "lacks migrations of delayed_queue: 0002_more_compat1. Run manage.py migrate." in output


def test_o16_the_tables_of_before_are_left_as_they_were() -> None:
    """The tests above revert every change they made."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM information_schema.columns WHERE column_name LIKE 'later%'"
        )
        assert cursor.fetchone() == (0,)
