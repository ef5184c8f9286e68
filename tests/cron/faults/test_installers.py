"""A killed or cut off installer leaves the old ticks or the new ones, never neither (C1)."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from delayed_queue import CronMessage, DelayedQueue
from delayed_queue.cron.rules import tick_key
from delayed_queue.models import Message, Schedule
from tests.support.processes import LEAN, ROOT, environment, wait_until
from tests.support.proxy import Proxy
from tests.support.sampling import sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

OLD, NEW = "a" * 32, "b" * 32
START: Final = int((datetime.now(UTC) + timedelta(hours=1)).timestamp())
TIMEOUT: Final = 20.0


@contextmanager
def installing(config_hash: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cron.faults.cron_installer", config_hash, str(START)],
        cwd=ROOT,
        env=environment() | LEAN,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def messages() -> list[CronMessage]:
    start = datetime.fromtimestamp(START, UTC)
    return [CronMessage("tick", start + number * timedelta(minutes=1)) for number in range(5)]


def hashes() -> list[str]:
    return [key.split("/")[1] for key in Message.objects.values_list("key", flat=True)]


def others(admin: psycopg.Connection[Any]) -> list[Any]:
    """Return the number of other open transactions."""
    return admin.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND xact_start IS NOT NULL AND backend_type = %s",
        ["client backend"],
    ).fetchall()


def waiting(admin: psycopg.Connection[Any]) -> list[tuple[int, str]]:
    """Return the server processes that wait for a lock, and their statements."""
    return admin.execute(
        "SELECT pid, query FROM pg_stat_activity"
        " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
    ).fetchall()


@pytest.mark.parametrize(
    ("held", "statement"),
    [
        ("schedule", "INSERT INTO delayed_queue_schedule"),
        ("tick", "INSERT INTO delayed_queue AS stored"),
    ],
)
def test_killed_between_its_statements(other, admin, held, statement):
    """A lock makes it wait at a known statement: before the deletion, or after it."""
    DelayedQueue("faults").cron.install_tick(OLD, "report", messages())
    key = tick_key("report", NEW, messages()[2].schedule_at)
    with other.transaction(force_rollback=True):
        if held == "schedule":
            other.execute("SELECT FROM delayed_queue_schedule FOR UPDATE")
        else:
            other.execute(
                'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt",'
                ' "scheduledAtInitially", "createdAt") VALUES (%s, %s, %s, 0, 0, 0)',
                [key, "faults|json", b"x"],
            )
        with installing(NEW) as process:
            wait_until(lambda: waiting(admin))
            ((pid, query),) = waiting(admin)
            assert statement in query
            process.send_signal(signal.SIGKILL)
            assert process.wait(TIMEOUT) == -signal.SIGKILL
    gone = "SELECT FROM pg_stat_activity WHERE pid = %s"
    wait_until(lambda: admin.execute(gone, [pid]).fetchone() is None)

    assert hashes() == [OLD] * 5
    assert Schedule.objects.get().config_hash == OLD
    # The next one is not blocked.
    with installing(NEW) as process:
        assert process.wait(TIMEOUT) == 0
    assert hashes() == [NEW] * 5


def test_killed_at_any_moment(admin: psycopg.Connection[Any]):
    """Repeatedly, each time a little later: all ticks belong to one configuration."""
    DelayedQueue("faults").cron.install_tick(OLD, "report", messages())
    for number in range(3):
        with installing(NEW if number % 2 == 0 else OLD) as process:
            threading.Event().wait(number * 0.02)
            process.kill()
            process.wait(TIMEOUT)
        wait_until(lambda: not others(admin))
        assert hashes() in ([OLD] * 5, [NEW] * 5)


@pytest.mark.parametrize(
    "tag",
    sample(
        ["INSERT 0 1", "SELECT 5", "DELETE 5", "INSERT 0 5", "UPDATE 1", "COMMIT"],
        "INSERT 0 5", "COMMIT",
    ),
)  # fmt: skip
def test_an_answer_that_is_lost_is_asked_for_again(queue: DelayedQueue, proxy: Proxy, tag: str):
    """At each statement of the transaction the repeated call has the same result."""
    queue.cron.install_tick(OLD, "report", messages())
    proxy.swallow_answer(tag)

    report = queue.cron.install_tick(NEW, "report", messages())

    assert proxy.swallowed_tag is None
    # The answer to the commit was lost; the second call finds its own ticks.
    assert report.created + report.kept == 5
    assert hashes() == [NEW] * 5


def test_c8_an_installer_outlives_an_outage(queue: DelayedQueue, proxy: Proxy):
    proxy.refuse()
    with queue.cron.install(NEW, "report", timedelta(milliseconds=20), lambda _: messages()) as it:
        assert not it.wait(0.2)
        proxy.accept()
        assert it.wait(TIMEOUT)
    assert hashes() == [NEW] * 5


def test_c8_close_does_not_wait_for_a_lock(other, admin):
    queue = DelayedQueue("faults")
    queue.cron.install_tick(OLD, "report", messages())
    with other.transaction():
        other.execute("SELECT FROM delayed_queue_schedule FOR UPDATE")
        handle = queue.cron.install(NEW, "report", timedelta(hours=1), lambda _: messages())
        wait_until(lambda: waiting(admin))
        assert handle.close()
    assert hashes() == [OLD] * 5
