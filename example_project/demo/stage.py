"""The stage of all acts: the database, the processes, and waiting for progress."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.management import call_command
from django.db import ProgrammingError, connection, transaction
from django.db.models import QuerySet
from django.test.utils import override_settings
from django.urls import reverse

from delayed_queue.models import DeadLetter, Message, Worker
from example_project.demo.clients import Threads
from example_project.demo.report import Console, DemoError, Outcome, Stalled

MANAGE: Final = (sys.executable, "-m", "example_project.demo.child")
WORKER: Final = ("runqueueworker", "--processes", "0", "--no-color")
HOST: Final = "127.0.0.1"
TIMEOUT_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.25
LOCK: Final = int.from_bytes(b"demo", "big")
T = TypeVar("T")


class Act:
    """One part of the demo."""

    name: str
    introduction: str

    def leftovers(self) -> Iterator[QuerySet[Any]]:
        """Yield the rows of an earlier run, in the order of their deletion."""
        raise NotImplementedError

    def prepare(self, stage: Stage) -> None:
        """Open servers before any process of the stage starts."""

    def warm_up(self, stage: Stage) -> None:
        """Start slow processes while an earlier act still waits."""

    def run(self, stage: Stage) -> Outcome:
        """Run the act; raises DemoError if it cannot run or makes no progress."""
        raise NotImplementedError

    @transaction.atomic
    def clear(self) -> None:
        for rows in self.leftovers():
            rows.delete()


def messages_of(*kinds: str) -> Iterator[QuerySet[Any]]:
    """Yield the messages of these kinds, and their dead letters."""
    yield Message.objects.filter(kind__in=kinds)
    yield DeadLetter.objects.filter(kind__in=kinds)


class Child(subprocess.Popen[bytes]):
    """A management command as a process of its own, its log in a file."""

    name: str
    log: Path
    may_end = False

    def tell(self, line: str) -> None:
        """Write a line to its input; ``check`` reports a process that has ended."""
        assert self.stdin is not None  # noqa: S101 # Stage.start made it
        with suppress(BrokenPipeError):
            self.stdin.write(f"{line}\n".encode())
            self.stdin.flush()

    def check(self) -> None:
        """Raise Stalled if it has ended and should be running."""
        if not self.may_end and self.poll() is not None:
            end = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
            raise Stalled(
                f"The {self.name} (process {self.pid}) ended by itself with exit code "
                f"{self.returncode}. The end of its log:\n{end}"
            )

    def end(self, seconds: float = 0.0) -> int:
        """Wait for its end, kill it after some seconds; return its exit code."""
        self.may_end = True
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        self.communicate()  # closes its input
        return self.returncode


class Stage:
    """A block in which acts run; at its end all of their processes are stopped."""

    directory: Path
    login: str

    def __init__(
        self, console: Console, manage: Sequence[str] = MANAGE, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self.console, self.timeout = console, timeout
        self.children: list[Child] = []
        # Exit codes of the processes that were stopped in order during the act.
        self.codes: list[int] = []
        # The longest delay of a wake-up of this process in seconds: the load of the machine.
        self.lag = 0.0
        self.environment: dict[str, str] = {}
        self._manage, self._stack = manage, ExitStack()
        self.ports: list[int] = []
        self._threads: list[Threads] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.console.say(ending="")
        with self._stack:
            try:
                self.stop(self.children)
            finally:  # after a second Ctrl-C
                for each in self.children:
                    each.end()

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that ends with the stage."""
        return self._stack.enter_context(context)

    def prepare(self, acts: Sequence[Act]) -> None:
        """Start and migrate the database, and delete the rows of an earlier run."""
        self.console.step("database", start_database())
        self.enter(alone())
        self.directory = Path(self.enter(tempfile.TemporaryDirectory(prefix="delayed-queue-demo-")))
        self.environment = {
            **os.environ,
            "DEBUG": "0",  # with DEBUG Django logs every query
            "SECRET_KEY": settings.SECRET_KEY,
            "PYTHONUNBUFFERED": "1",
        }
        self.login = _create_login()
        for act in acts:
            act.clear()
            act.prepare(self)
        self._allow_calls()

    def _allow_calls(self) -> None:
        """Allow callbacks to the ports of the simulated third parties."""
        known: dict[str, Any] = settings.DELAYED_QUEUE
        calls = {"ALLOWED_NETWORKS": [f"{HOST}/32"], "ALLOWED_PORTS": self.ports}
        calls = {**known.get("CALLBACKS", {}), **calls}
        self.enter(override_settings(DELAYED_QUEUE={**known, "CALLBACKS": calls}))
        self.environment |= {
            "CALLBACKS": "1", "CALLBACK_NETWORKS": f"{HOST}/32",
            "CALLBACK_PORTS": ",".join(map(str, self.ports)),
        }  # fmt: skip

    # Processes

    def start(
        self, name: str, *arguments: str, inherits: socket.socket | None = None, **environment: str
    ) -> Child:
        """Start a management command as a process, which inherits the socket."""
        log = self.directory / f"{len(self.children) + 1}-{name}.log"
        with log.open("wb") as file:
            child = Child(
                [*self._manage, *arguments],
                stdin=subprocess.PIPE,  # the child stops when it is closed
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                pass_fds=[inherits.fileno()] if inherits else [],
                start_new_session=True,  # Ctrl-C stops us, and we stop them in order
                cwd=settings.BASE_DIR,
            )
        child.name, child.log = name, log
        self.children.append(child)
        return child

    def start_workers(self, count: int, name: str, *arguments: str) -> list[Child]:
        """Start workers, and return when each has written its row to the database."""
        started_at = database_now()
        workers = [self.start(name, *WORKER, *arguments) for _ in range(count)]
        pids = [each.pid for each in workers]
        # A killed worker may have left an older row with the same pid.
        up = Worker.objects.filter(started_at__gte=started_at, pid__in=pids)
        self.wait(
            lambda: up.count() == count, lambda: f"{up.count()} of {count} processes have started",
            TIMEOUT_SECONDS,
        )  # fmt: skip
        self.console.step(name, f"{count} processes: {', '.join(map(str, pids))}")
        return workers

    def kill(self, victim: Child, *arguments: str) -> Child:
        """Kill a worker with SIGKILL, and return the one that replaces it."""
        victim.end()
        successor = self.start(victim.name, *WORKER, *arguments)
        self.console.step("kill", f"{victim.name} {victim.pid} killed, {successor.pid} replaces it")
        return successor

    def stop(self, children: Sequence[Child]) -> None:
        """Stop with SIGTERM, after some seconds with SIGKILL; record the exit codes."""
        ours = [each for each in children if not each.may_end]
        for each in ours:
            each.may_end = True
            each.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        self.codes += [each.end(max(deadline - time.monotonic(), 0)) for each in ours]

    def threads(self) -> Threads:
        """Return threads whose failure ends every wait."""
        self._threads.append(Threads())
        return self._threads[-1]

    # Waiting

    def wait(
        self, until: Callable[[], bool], state: Callable[[], str], timeout: float = 0.0
    ) -> None:
        """Return once it is true; raise Stalled if the state stays the same, or something fails.

        The state describes the progress in words, so it changes on a slow machine, too.
        """
        timeout = timeout or self.timeout
        began = moved_at = time.monotonic()
        seen = ""
        while not until():
            self.check()
            text, now = state(), time.monotonic()
            if text != seen:
                seen, moved_at = text, now
            elif now - moved_at > timeout:
                raise Stalled(f"No progress for {timeout:g} s: {text}.")
            self.console.progress(f"{now - began:3.0f} s  {text}")
            asleep_at = time.monotonic()
            time.sleep(LOOK_SECONDS)
            self.lag = max(self.lag, time.monotonic() - asleep_at - LOOK_SECONDS)

    def check(self) -> None:
        """Raise Stalled if a process has ended unexpectedly, or a thread has failed."""
        for child in self.children:
            child.check()
        for error in filter(None, (each.error for each in self._threads)):
            raise Stalled(f"A client failed: {type(error).__name__}: {error}") from error

    # The web server

    @cached_property
    def web(self) -> str:
        """The address of the web server with the admin and the APIs; starts it if needed."""
        # The child inherits the open port; a free port number could be taken meanwhile.
        with socket.create_server((HOST, 0)) as own:
            # DEBUG serves the static files of the admin.
            self._web = self.start("web", "web", str(own.fileno()), inherits=own, DEBUG="1")
            # Calls wait until the server has started: the port is open already.
            return f"http://{HOST}:{own.getsockname()[1]}"

    @property
    def admin(self) -> str:
        return f"{self.web}{reverse('admin:index')} {self.login}"

    def serve(self) -> None:
        """Keep one worker for all queues and the admin running until Ctrl-C."""
        address = self.admin
        self.stop([each for each in self.children if each is not self._web])
        self.console.step("serving", f"{address}; Ctrl-C stops")
        with suppress(KeyboardInterrupt):
            self.start("worker", *WORKER)
            while True:
                self.check()
                time.sleep(LOOK_SECONDS)


# The database: started, migrated, and one demo's alone


def start_database() -> str:
    """Start the embedded server unless DATABASE_URL names another, migrate, return its name."""
    embedded = settings.EMBEDDED_POSTGRES
    if embedded:
        embedded.start()
    call_command("migrate", verbosity=0, interactive=False)
    _check_tables()
    where = "embedded" if embedded else f"at {connection.settings_dict['HOST'] or 'its socket'}"
    version = ".".join(map(str, connection.get_database_version()))
    return f"PostgreSQL {version} ({where}), database {connection.settings_dict['NAME']}"


def _check_tables() -> None:
    """Raise if a table lacks a column of this version: before a release there is no upgrade."""
    try:
        for model in apps.get_models():
            model._default_manager.order_by().first()
    except ProgrammingError as error:
        embedded = settings.EMBEDDED_POSTGRES
        way = f"`python manage.py queuedb stop`, remove {embedded.home}" if embedded else "Drop it"
        raise DemoError(
            "The database was made by another version of the project, before the first release: "
            f"{str(error).splitlines()[0]}. {way}, and run this again."
        ) from error


def database_now() -> datetime:
    """Return the time of the database, by which messages fall due."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        found: datetime = cursor.fetchone()[0]
        return found


@contextmanager
def alone() -> Iterator[None]:
    """Refuse to run while another demo uses this database, because each run clears it.

    A lock of a transaction on a second connection ends with this process.
    """
    other: Any = connection.copy()
    with closing(other):
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
            if not cursor.fetchone()[0]:
                raise DemoError("Another demo is running on this database. Stop it first.")
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def _create_login() -> str:
    """Create a superuser with a password of this run; return the login."""
    password = secrets.token_urlsafe(9)
    rights = {"is_staff": True, "is_superuser": True, "is_active": True}
    defaults = {**rights, "password": make_password(password)}
    get_user_model().objects.update_or_create(username="demo", defaults=defaults)
    return f"(user demo, password {password})"
