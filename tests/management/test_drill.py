"""The drill: nine faults at once, each found from the admin and by commands (O28)."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from html import unescape
from io import StringIO
from typing import Final

import psutil
import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from pytest_django import Settings

from delayed_queue import DelayedQueue, Envelope, Groups
from delayed_queue.models import DeadLetter, Message, Worker
from delayed_queue.queue.fingerprints import fingerprint
from tests.admin.support import page
from tests.support.concurrency import raw_connection
from tests.support.factories import from_now
from tests.support.processes import wait_until, worker
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

OVERVIEW: Final = "/admin/delayed_queue/queueoverview/"
LETTERS: Final = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt",
    fingerprint
)
SELECT 'letters|json', %s || n, '1', 5, %s, 0, 0, extract(epoch FROM now()) * 1000 + n, %s
FROM generate_series(1, 1000) AS n
"""
SCHEDULED: Final = """
INSERT INTO delayed_queue ("pKind", "pKey", payload, "scheduledAt", "scheduledAtInitially",
    "createdAt")
SELECT 'later|json', n::text, '1', 4102444800000, 4102444800000, 0
FROM generate_series(1, 200000) AS n
"""
REASONS: Final = ("the provider answered 503", "no answer in time", "no address")


@contextmanager
def poisoned() -> Iterator[None]:
    """A message kills each process that handles it, and becomes a dead letter."""
    DelayedQueue("poison").offer_or_update("poison-7", "out of memory")
    queues = ("--queue", "poison", "--queue", "patient")
    with worker(*queues, "--processes", "1", "--worker-id", "busy-1"):
        wait_until(lambda: DeadLetter.objects.filter(kind="poison|json").exists(), 120)
        yield


@contextmanager
def stopped() -> Iterator[None]:
    """A worker without a heartbeat, as after ten minutes: SIGSTOP stops it."""
    with worker("--queue", "ledger", "--processes", "0", "--worker-id", "stopped-1") as process:
        rows = Worker.objects.filter(name="stopped-1")
        wait_until(rows.exists, 120)
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        rows.update(heartbeat_at=from_now(minutes=-10))
        yield


def kill_letters_and_schedule_many() -> None:
    with connection.cursor() as cursor:
        for number, reason in enumerate(REASONS):
            cursor.execute(LETTERS, [f"{number}-", reason, fingerprint(reason, None)])
        cursor.execute(SCHEDULED)


def block() -> None:
    queue = DelayedQueue("patient")
    queue.groups.set(Groups(order="fifo", on_dead="block"))
    queue.offer_or_update("first", 1, group="acme")
    (envelope,) = queue.try_poll_many(1)
    assert envelope.reject("no such customer")
    queue.offer_or_update("second", 1, group="acme")


def leave_late() -> None:
    DelayedQueue("unserved").offer_or_update("k", 1)
    DelayedQueue("forgotten").offer_or_update("k", 1)
    DelayedQueue("forgotten").pause("moving house", by="anna")
    Message.objects.exclude(kind="later|json").filter(lease_id=None).update(
        scheduled_at=from_now(minutes=-30)
    )


@pytest.fixture
def faults(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All nine at once; the thresholds of time are short."""
    settings.DELAYED_QUEUE = {**settings.DELAYED_QUEUE, "HANDLER_SLOW": timedelta(seconds=1)}
    for module in ("delayed_queue.observe.lateness", "delayed_queue.admin.overview"):
        monkeypatch.setattr(f"{module}.OLD", timedelta(0))
    kill_letters_and_schedule_many()
    block()
    leave_late()
    with ExitStack() as stack:
        stack.enter_context(poisoned())
        stack.enter_context(stopped())
        holder = stack.enter_context(raw_connection())
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        stack.enter_context(hanging())
        yield


class hanging(ExitStack):
    """A worker with a handler that does not return before the end of the block."""

    def __enter__(self) -> hanging:
        begun, go_on = threading.Event(), threading.Event()

        def hang(envelope: Envelope) -> None:
            begun.set()
            assert go_on.wait(300)

        DelayedQueue("hung").offer_or_update("hangs-3", 1)
        hanging = worker_with(handler_of("hung", hang), worker_id="hanging-1")
        self.enter_context(running(hanging))
        self.callback(go_on.set)
        assert begun.wait(30)
        wait_until(lambda: hanging.describe().load.columns()["slow"] == 1)
        hanging._heartbeat.beat()  # noqa: SLF001 - instead of ten seconds
        return self


def text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", unescape(html)).split())


def links(html: str) -> list[str]:
    return [unescape(each) for each in re.findall(r'href="([^"#]+)"', html)]


# For each fault: what the overview or a page within two clicks of it shows, by parts of the links
# to follow; and at most two commands whose output shows it.
FOUND: Final[dict[str, tuple[tuple[str, ...], str, tuple[str, ...], str]]] = {
    "poison message": (
        ("/deadletter/?kind=poison", "/deadletter/[0-9]+/change/"), "signal 9 (SIGKILL)",
        ("queuedead list --queue poison", "queuedead groups"), "crashed",
    ),
    "3,000 dead letters": (
        ("/deadletter/?kind=letters", "/failures/"), "no answer in time",
        ("queuedead groups",), "no answer in time",
    ),
    "no worker": ((), "no worker serves it", ("queuestats",), "unserved is late: no worker"),
    "old snapshot": (
        (), "PostgreSQL cannot vacuum deleted messages",
        ("queuehealth --max-snapshot-age 0",), "PostgreSQL cannot vacuum",
    ),
    "forgotten pause": ((), "moving house", ("queuestats",), "paused (anna: moving house)"),
    "hung handler": (
        (), "A handler of hung has run for",
        ("queuehealth --max-running 1s",), "hung: the handler of 'hangs-3' has run",
    ),
    "stopped worker": (
        ("/worker/?state=alive", "?state=silent"), "stopped-1",
        ("queueworkers list",), "silent",
    ),
    "200,000 scheduled": ((), "≈ ", ("queuestats --cap 300000",), "200,000"),
    "blocked group": (
        (), "groups are blocked by a dead letter: acme",
        ("queuestats",), "patient is late: groups are blocked by a dead letter: acme",
    ),
}  # fmt: skip


def follow(client: Client, clicks: tuple[str, ...]) -> str:
    """Return the page behind the links, from the overview on."""
    url, html = OVERVIEW, page(client, OVERVIEW)
    for part in clicks:
        pattern = re.compile(re.escape(part).replace(r"\[0\-9\]\+", "[0-9]+"))
        target = next(each for each in links(html) if pattern.search(each))
        url = target if target.startswith("/") else url.partition("?")[0] + target
        html = page(client, url)
    return text(html)


def run(line: str) -> str:
    out = StringIO()
    with suppress(SystemExit):
        call_command(*line.split(), stdout=out)
    return out.getvalue()


@pytest.mark.usefixtures("faults")
def test_o28_nine_faults_at_once_are_found(admin_client: Client) -> None:
    missed = []
    for fault, (clicks, shown, commands, said) in FOUND.items():
        assert len(clicks) <= 2
        assert len(commands) <= 2
        if shown not in follow(admin_client, clicks):
            missed.append(f"{fault}: {shown!r} in the admin")
        if not any(said in run(line) for line in commands):
            missed.append(f"{fault}: {said!r} by {commands}")
    assert missed == []
    title = page(admin_client, OVERVIEW).partition("<title>")[2].partition("</title>")[0]
    for words in ("late", "without a worker", "handler slow", "dead", "worker silent", "paused"):
        assert words in title
