"""A supervisor and its processes by the command line: the effects of a death (W4-W6)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Final

import psutil
import pytest
from django.core.management import call_command
from django.db.migrations.recorder import MigrationRecorder
from pytest_django import Settings

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import SchemaMismatch
from delayed_queue.models import Message, Worker
from delayed_queue.worker.board import START_SECONDS
from delayed_queue.worker.engine.database import check_schema
from delayed_queue.worker.options import WorkerOptions
from delayed_queue.worker.process.supervisor import Child, Supervisor
from tests.support.ledger import offer
from tests.support.processes import children_of, database_url, wait_until, worker
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

# No lease of these tests expires: a redelivered message was released.
LEASE = ("--lease", "600")


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def attempts() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, attempt in Effect.objects.order_by("id").values_list("key", "attempt"):
        found.setdefault(key, []).append(attempt)
    return found


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False
    return "State:\tZ" not in status


def test_w6_messages_of_a_killed_child_come_back_at_once() -> None:
    queue = DelayedQueue("conduct")
    queue.offer_or_update("hangs", "hang once")
    with worker("--queue", "conduct", "--concurrency", "1", *LEASE) as process:
        wait_until(Effect.objects.exists)
        queue.offer_batch([ScheduledMessage(f"k{each}", "fine") for each in range(10)])
        (child,) = children_of(process)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not Message.objects.exists())
    assert attempts() == {"hangs": [1, 2], **{f"k{each}": [1] for each in range(10)}}
    assert child not in Effect.objects.filter(attempt=2).values_list("pid", flat=True)


def test_o21_a_dead_process_leaves_no_silent_row() -> None:
    """Operators see a worker as silent only if no other has replaced it."""
    with worker("--queue", "ledger", "--processes", "2", *LEASE) as process:
        wait_until(lambda: Worker.objects.count() == 2)
        killed = children_of(process)
        for child in killed:
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: not Worker.objects.filter(pid__in=killed).exists())
        wait_until(lambda: Worker.objects.count() == 2)
        assert set(Worker.objects.values_list("pid", flat=True)) == set(children_of(process))


def test_w4_children_of_a_killed_supervisor_drain_and_end() -> None:
    keys = offer(DelayedQueue("ledger"), 1500)
    with worker("--queue", "ledger", "--processes", "2", *LEASE) as process:
        wait_until(lambda: Effect.objects.count() > 50)
        children = children_of(process)
        process.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in children))
    assert len(children) == 2
    # All their messages were settled, or released without counting an attempt.
    left = Message.objects.values_list("key", "lease_id", "attempts")
    assert {(lease, count) for _, lease, count in left} <= {(None, 0)}
    assert Counter(Effect.objects.values_list("key", flat=True)) + Counter(
        key for key, _, _ in left
    ) == Counter(keys)


@pytest.mark.long
def test_w10_children_that_never_start_are_not_started_for_ever() -> None:
    with worker("--queue", "ledger", "--no-reload", BREAK_CHILDREN="1") as process:
        code, output = process.ended()
    assert code == 1
    assert output.count("event=process_died") == 3
    assert "broken in the child" in output


@contextmanager
def applied(*names: str) -> Iterator[None]:
    """Record only these migrations of the package as applied."""
    rows = MigrationRecorder.Migration.objects
    before = list(rows.filter(app="delayed_queue"))
    rows.filter(app="delayed_queue").delete()
    rows.bulk_create([MigrationRecorder.Migration(app="delayed_queue", name=n) for n in names])
    try:
        yield
    finally:
        rows.filter(app="delayed_queue").delete()
        rows.bulk_create(before)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("0001_initial", "9999_later"), "does not know: 9999_later"),
        (("0001_initial", "0002_more_compat1", "9_all_compat2"), "does not know: 9_all_compat2."),
        ((), "lacks migrations of delayed_queue: 0001_initial"),
    ],
    ids=["newer", "newer by what does not only add", "older"],
)
def test_a_schema_of_another_version_is_refused(names: tuple[str, ...], message: str) -> None:
    with applied(*names), pytest.raises(SchemaMismatch, match=message):
        check_schema("default")


MODULE = """
from delayed_queue import handler
from tests.workerapp.models import Effect

@handler("reloaded")
def handle(envelope):
    Effect.objects.create(queue="reloaded", key="{version}", attempt=1, pid=0)
"""


def rewrite(module: Path, text: str, seconds: float) -> None:
    """Change it, ``seconds`` after its last change."""
    module.write_text(text)
    later = module.stat().st_mtime + seconds
    os.utime(module, (later, later))


def test_reload_replaces_the_processes_when_a_source_file_changes(tmp_path: Path) -> None:
    module = tmp_path / "reloaded_handlers.py"
    module.write_text(MODULE.format(version="one"))
    queue = DelayedQueue("reloaded")
    variables = {"MORE_HANDLERS": "reloaded_handlers", "PYTHONPATH": str(tmp_path)}
    with worker("--queue", "reloaded", "--reload", **variables) as process:
        queue.offer_or_update("k", 1)
        wait_until(lambda: Effect.objects.filter(key="one").exists())
        (child,) = children_of(process)
        # A module that fails to import is retried once it has changed.
        rewrite(module, "broken =", 10)
        wait_until(lambda: not is_alive(child))
        wait_until(lambda: process.has_said("SyntaxError"))
        rewrite(module, MODULE.format(version="two"), 20)
        queue.offer_or_update("k", 1)
        wait_until(lambda: Effect.objects.filter(key="two").exists())
        process.send_signal(signal.SIGTERM)
        assert process.ended()[0] == 0


def test_all_end_when_the_one_that_looks_after_files_is_killed() -> None:
    with worker("--queue", "ledger", "--reload") as process:
        wait_until(lambda: process.has_said("Ctrl-C stops it"))
        family = [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
        process.kill()
        wait_until(lambda: not any(is_alive(pid) for pid in family))
    assert len(family) >= 1


CONNECTED: Final = """
from django.db import connection
connection.ensure_connection()
"""


def test_what_was_connected_before_a_fork_is_not_shared(tmp_path: Path) -> None:
    (tmp_path / "connected.py").write_text(CONNECTED)
    keys = offer(DelayedQueue("ledger"), 300)
    variables = {"MORE_HANDLERS": "connected", "PYTHONPATH": str(tmp_path)}
    with worker("--queue", "ledger", "--processes", "3", "--burst", **variables) as process:
        code, output = process.ended()
    assert code == 0
    assert "with 3 processes" in output
    assert "300 done, 0 to be retried, 0 snoozed, 0 dead, 0 lost" in output
    assert "database_unavailable" not in output
    assert Counter(Effect.objects.values_list("key", flat=True)) == Counter(keys)


# A project module that opens a connection at import, as in ready().
OPENED: Final = """
import os
import psycopg
from delayed_queue import handler
shared = psycopg.connect(os.environ["SHARED"], autocommit=True)

@handler("shared")
def use(envelope):
    shared.execute("SELECT 1")
"""


def test_w21_a_connection_of_the_project_that_is_open_at_the_fork_is_named(tmp_path: Path) -> None:
    (tmp_path / "opened.py").write_text(OPENED)
    DelayedQueue("shared").offer_or_update("a", 1)
    variables = {
        "MORE_HANDLERS": "opened", "PYTHONPATH": str(tmp_path), "SHARED": database_url(),
    }  # fmt: skip
    with worker("--queue", "shared", "--processes", "2", **variables) as process:
        wait_until(lambda: process.has_said("event=failed"))
        process.send_signal(signal.SIGTERM)
        code, output = process.ended()
    assert code == 0
    assert output.count("event=connections_open_at_fork count=1") == 1
    assert "error=OperationalError" in output


def metrics_of(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def test_processes_that_are_forked_while_metrics_are_read_work(free_port: int) -> None:
    """A metric's lock held at the fork would block the children for ever."""
    queue, is_over = DelayedQueue("conduct"), threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            with suppress(OSError):
                metrics_of(free_port)

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    with worker("--queue", "conduct", "--health-address", f"127.0.0.1:{free_port}") as process:
        wait_until(lambda: process.has_said("Ctrl-C stops it"))
        for each in readers:
            each.start()
        for number in range(4):
            queue.offer_or_update(f"k{number}", "fine")
            wait_until(lambda: not Message.objects.exists())
            for child in children_of(process):
                os.kill(child, signal.SIGKILL)
        is_over.set()
        for each in readers:
            each.join(30)


def test_the_address_is_free_when_the_supervisor_was_killed(free_port: int) -> None:
    DelayedQueue("conduct").offer_or_update("hangs", "hang once")
    address = ("--health-address", f"127.0.0.1:{free_port}")
    with worker("--queue", "conduct", *address, *LEASE) as process:
        wait_until(Effect.objects.exists)
        (child,) = children_of(process)
        process.kill()
        process.wait()
        with socket.create_server(("127.0.0.1", free_port)):
            assert is_alive(child)
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: not is_alive(child))


def test_a_wrong_option_is_said_by_the_supervisor_alone() -> None:
    with worker("--processes", "-1") as process:
        code, output = process.ended()
    assert code != 0
    assert "--processes: '-1' is not a number from 0 to 1,000" in output
    assert "Traceback" not in output
    assert "process_died" not in output


def waiting(child: Child, lifeline: int) -> int:
    signal.pause()
    return 0


def supervisor_of(work: Callable[[Child, int], int] = waiting) -> Supervisor:
    options = WorkerOptions(concurrency=1, shutdown_timeout=timedelta(seconds=1))
    return Supervisor(options, work)


def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that advances the monotonic clock by the given seconds."""
    now, passed = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now() + sum(passed))
    return passed.append


def test_w6_a_child_whose_loop_stands_still_is_killed(settings, monkeypatch):
    settings.DELAYED_QUEUE = {"WATCHDOG": timedelta(seconds=10)}
    supervisor = supervisor_of()
    (child,) = supervisor.children
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child.pid = process.pid
        child.board.turn()
        later = clock(monkeypatch)
        for _ in range(9):
            later(1)
            supervisor.watch_over(child)
        assert process.poll() is None
        later(2)
        supervisor.watch_over(child)
        assert process.wait(10) == -signal.SIGKILL


def test_w6_a_child_that_was_paused_together_with_its_supervisor_has_its_time_anew(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thawed container resumes its processes in any order; a child that still hangs is killed."""
    settings.DELAYED_QUEUE = {"WATCHDOG": timedelta(seconds=10)}
    supervisor = supervisor_of()
    (child,) = supervisor.children
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child.pid = process.pid
        child.board.turn()
        later = clock(monkeypatch)
        later(3600)
        for _ in range(10):
            later(1)
            supervisor.watch_over(child)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        later(1)
        supervisor.watch_over(child)
        assert process.wait(10) == -signal.SIGKILL


def test_w6_a_start_is_not_taken_for_standing_still(settings: Settings) -> None:
    """A start on an overloaded machine may exceed the watchdog's timeout."""
    settings.DELAYED_QUEUE = {"WATCHDOG": timedelta(seconds=10)}
    supervisor = supervisor_of()
    (child,) = supervisor.children
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        child.pid = process.pid
        child.started_at = time.monotonic() - START_SECONDS + 5
        supervisor.watch_over(child)
        assert process.poll() is None
        child.started_at = time.monotonic() - START_SECONDS - 1
        supervisor.watch_over(child)
        assert process.wait(10) == -signal.SIGKILL
    assert child.health().turned_seconds_ago > 10


def test_w4_a_stop_while_a_process_starts_is_no_crash() -> None:
    with worker("--queue", "ledger") as process:
        wait_until(lambda: process.has_said("Ctrl-C stops it") and children_of(process))
        process.send_signal(signal.SIGTERM)
        code, output = process.ended()
    assert code == 0
    assert "process_died" not in output
    assert "Traceback" not in output


# Python 3.12 and later warn about fork in a process with several threads, as pytest is.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_w4_a_stop_while_a_child_is_being_started_reaches_it() -> None:
    """The signal's handler runs in the middle of the start, before the child has an id."""
    supervisor = supervisor_of()
    (child,) = supervisor.children
    start = child.start

    def start_and_be_stopped(work: Callable[[Child], int]) -> None:
        supervisor.stop()
        start(work)

    child.start = start_and_be_stopped  # type: ignore[method-assign]
    supervisor.look_after(child)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == -signal.SIGTERM


def test_o21_a_restarted_process_finishes_and_is_replaced() -> None:
    """A drained process stays drained when it is replaced."""
    queue = DelayedQueue("ledger")
    with worker("--queue", "ledger", "--worker-id", "w", *LEASE) as process:
        wait_until(Worker.objects.exists)
        (before,) = children_of(process)
        call_command("queueworkers", "restart", "w", stdout=StringIO())
        wait_until(lambda: Worker.objects.exclude(pid=before).exists())
        assert not Worker.objects.filter(pid=before).exists()
        (after,) = children_of(process)
        call_command("queueworkers", "drain", "w", stdout=StringIO())
        wait_until(lambda: process.has_said("event=worker_drained"))
        os.kill(after, signal.SIGKILL)
        wait_until(lambda: Worker.objects.exclude(pid=after).filter(command="drain").exists())
        offer(queue, 1)
        call_command("queueworkers", "resume", "w", stdout=StringIO())
        wait_until(Effect.objects.exists)
