"""What all acts share: processes and threads, one way to wait, checks, and lines for people."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import OutputWrapper
from django.db import ProgrammingError, connection
from django.test.utils import override_settings
from django.urls import reverse

from delayed_queue.models import Worker

MANAGE: Final = (sys.executable, "-m", "example_project.demo.child")
WORKER: Final = ("runqueueworker", "--processes", "0", "--no-color")
HOST: Final = "127.0.0.1"
TIMEOUT_SECONDS: Final = 60.0
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.25
PLAIN_SECONDS: Final = 5.0
# The port that is tried before any other.
FIRST_PORT: Final = 8000
THREADS: Final = 16
LOCK: Final = int.from_bytes(b"demo", "big")
SHOWN: Final = 5
BOLD, DIM, RED, GREEN = 1, 2, 31, 32
T = TypeVar("T")


class DemoError(Exception):
    """The demo cannot go on; the text says why in a sentence or two."""


class Stalled(DemoError):
    """The act does not get on: nothing moves, or a process of it has ended."""


# Acts, and what they leave


class Check(NamedTuple):
    """A statement about the run, and whether it holds."""

    name: str
    passed: bool
    statement: str


def none_of(name: str, wrong: Iterable[object], statement: str, *, and_also: bool = True) -> Check:
    """Return the check that nothing went wrong in this way; it names some of what did."""
    found = sorted(map(str, wrong))
    examples = ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
    detail = f"{statement}; not so: {examples}" if found else statement
    return Check(f"{name} {len(found):,}", not found and and_also, detail)


def repeated(names: Iterable[T]) -> list[T]:
    """Return those that come more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def stopped(codes: Sequence[int]) -> Check:
    """Return the check that all processes ended well."""
    # By the signal itself: a worker that was still starting up, and held nothing yet.
    well = bool(codes) and all(each in (0, -signal.SIGTERM) for each in codes)
    said = f"on SIGTERM, with exit codes {', '.join(map(str, codes))}"
    return Check("processes stopped", well, said)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an act: figures for programs, rows with some of them for people, and checks."""

    figures: dict[str, Any]
    rows: Sequence[tuple[str, str]]
    checks: Sequence[Check]

    @property
    def failed(self) -> list[Check]:
        return [each for each in self.checks if not each.passed]


class Act:
    """One thing that the demo shows."""

    name: str
    introduction: str

    def clear(self) -> None:
        """Delete what an earlier run left in the database."""

    def prepare(self, stage: Stage) -> None:
        """Open what must be there before any process of the stage is started."""

    def warm_up(self, stage: Stage) -> None:
        """Start what takes long to be up, while the acts before it still wait for things."""

    def run(self, stage: Stage) -> Outcome:
        """Run from start to end; raises DemoError when it cannot, or does not get on."""
        raise NotImplementedError


# Waiting

# What must change while something is waited for, and how things stand in words.
State = tuple[object, str]


class Patience:
    """Runs out when what is seen stays the same for so many seconds, however slow the machine."""

    def __init__(
        self, seconds: float = TIMEOUT_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._clock = seconds, clock
        self._seen: object = None
        self._changed_at = clock()

    def see(self, seen: object, waiting: str) -> None:
        """Take note of where things stand; raise Stalled when nothing has moved for too long."""
        if seen != self._seen:
            self._seen, self._changed_at = seen, self._clock()
        elif self._clock() - self._changed_at > self._seconds:
            raise Stalled(f"No progress for {self._seconds:.0f} s: {waiting}.")


class Threads:
    """Threads of this process that are asked to end, by ``over``, when the block is left."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self._pool = ThreadPoolExecutor(THREADS)
        self._started: list[Future[None]] = []

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.over.set()
        self._pool.shutdown()

    def start(self, target: Callable[..., None], *arguments: Any) -> None:
        self._started.append(self._pool.submit(_closing_connection, target, *arguments))

    def play(self, do: Callable[[T], object], times: Iterable[tuple[float, T]]) -> None:
        """Start one that does each thing when its time has come, in seconds of Unix time."""

        def run() -> None:
            for at, thing in times:
                if self.over.wait(max(at - time.time(), 0)):
                    return
                do(thing)

        self.start(run)

    @property
    def are_done(self) -> bool:
        """Whether all have ended; raises Stalled if one has failed."""
        for each in self._started:
            if each.done() and (error := each.exception()):
                raise Stalled(f"A client failed: {type(error).__name__}: {error}") from error
        return all(each.done() for each in self._started)


def _closing_connection(target: Callable[..., None], *arguments: Any) -> None:
    try:
        target(*arguments)
    finally:
        connection.close()


class Console:
    """Lines for people; on a terminal the last one is redrawn while something is waited for."""

    def __init__(self, out: OutputWrapper, err: OutputWrapper, *, colour: bool) -> None:
        self._out, self._err = out, err
        self._is_terminal = bool(out.isatty())
        self._colour = colour and self._is_terminal
        self._is_drawn = False
        self._said_at = time.monotonic()

    def say(self, text: str = "") -> None:
        self._write(f"{text}\n")

    def step(self, name: str, text: str) -> None:
        """Write a line with a name in front."""
        self.say(f"  {self.styled(f'{name:<10}', DIM)} {text}")

    def warn(self, text: str) -> None:
        self.erase()
        self._err.write(text)
        self._err.flush()

    def progress(self, text: str) -> None:
        """Redraw the last line; where it cannot be, say it when nothing was said for a while."""
        if self._is_terminal:
            self._write(f"  {text}"[: shutil.get_terminal_size().columns - 1])
            self._is_drawn = True
        elif time.monotonic() - self._said_at > PLAIN_SECONDS:
            self.say(f"  {text}")

    def erase(self) -> None:
        if self._is_drawn:
            self._write("")

    def _write(self, text: str) -> None:
        self._out.write(("\r\x1b[K" if self._is_drawn else "") + text, str, ending="")
        self._out.flush()
        self._is_drawn, self._said_at = False, time.monotonic()

    def styled(self, text: str, code: int) -> str:
        """Return the text in that style of ANSI terminals, where there is one."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


# The database, and HTTP


def database_now() -> datetime:
    """Return the time on the clock that messages fall due by."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: datetime = cursor.fetchone()[0]
        return now


def start_server() -> str:
    """Start the embedded server unless DATABASE_URL names another; say what is in use."""
    if settings.EMBEDDED_POSTGRES:
        settings.EMBEDDED_POSTGRES.start()
    connection.ensure_connection()
    version = connection.connection.info.parameter_status("server_version").split()[0]
    found = connection.settings_dict
    where = "embedded" if settings.EMBEDDED_POSTGRES else f"at {found['HOST'] or 'its socket'}"
    return f"PostgreSQL {version} ({where}), database {found['NAME']}"


def check_tables() -> None:
    """Raise where a table lacks what this version has: until a release, none are migrated."""
    try:
        for model in apps.get_models():
            model._default_manager.order_by().first()
    except ProgrammingError as error:
        embedded = settings.EMBEDDED_POSTGRES
        way = "Drop that database"
        if embedded:
            way = f"`python manage.py queuedb stop`, remove {embedded.home}"
        raise DemoError(
            "The database was made by another version of the project, before the first release: "
            f"{str(error).splitlines()[0]}. {way}, and run this again."
        ) from error


def database_url() -> str:
    """Return the URL of the database in use; in tests that is not the one the settings name."""
    embedded = settings.EMBEDDED_POSTGRES
    url = embedded.socket_url if embedded else os.environ["DATABASE_URL"]
    name = quote(str(connection.settings_dict["NAME"]), safe="")
    return urlsplit(url)._replace(path=f"/{name}").geturl()


@contextmanager
def alone() -> Iterator[None]:
    """Refuse to run while another demo uses this database: each begins by clearing it.

    A lock of a transaction on a second connection: gone with this process, however it ends.
    """
    other: Any = connection.copy()
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute("SELECT pg_try_advisory_xact_lock(%s)", [LOCK])
            if not cursor.fetchone()[0]:
                raise DemoError("Another demo is running on this database. Stop it first.")
        yield
    finally:
        other.close()


def create_login() -> str:
    """Create the admin's superuser with a password of this run; return how to log in."""
    password = secrets.token_urlsafe(9)
    defaults = {"is_staff": True, "is_superuser": True, "is_active": True}
    user, _ = get_user_model().objects.update_or_create(username="demo", defaults=defaults)
    user.set_password(password)
    user.save(update_fields=["password"])
    return f"(user demo, password {password})"


def listener() -> socket.socket:
    """Listen on the port 8000, or on any that is free."""
    try:
        return socket.create_server((HOST, FIRST_PORT))
    except OSError:
        return socket.create_server((HOST, 0))


class Client:
    """Calls an API as any program would, from any thread."""

    def __init__(self, address: str, token: str) -> None:
        found = urlsplit(address)
        self._host, self._prefix, self._token = found.netloc, found.path, token

    def call(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> tuple[int, Any]:
        """Return the status and the JSON of the answer; bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind}
        with closing(http.client.HTTPConnection(self._host, timeout=70)) as connected:
            connected.request(method, self._prefix + path, data if body else None, headers)
            with connected.getresponse() as response:
                text = response.read()
        return response.status, json.loads(text) if text else None


# Processes


class Child(subprocess.Popen[bytes]):
    """A management command as a process of its own, its log in a file."""

    name: str
    log: Path
    may_end = False

    @property
    def is_running(self) -> bool:
        return self.poll() is None

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def tell(self, line: str) -> None:
        """Write a line to its input; one that has ended is found by ``Stage.check``."""
        assert self.stdin is not None  # noqa: S101 # Stage.start made it
        with suppress(BrokenPipeError):
            self.stdin.write(f"{line}\n".encode())
            self.stdin.flush()

    def end(self, seconds: float = 0.0) -> int:
        """Wait so long for its end, then kill it with SIGKILL; return its exit code."""
        self.may_end = True
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.stdin is not None:
            self.stdin.close()
        return self.wait()


class Stage:
    """A block in which acts can be run, and after which none of its processes is left."""

    directory: Path
    login: str

    def __init__(
        self, console: Console, manage: Sequence[str] = MANAGE, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self.console, self.timeout = console, timeout
        self.children: list[Child] = []
        self.environment: dict[str, str] = {}
        self._manage, self._stack = manage, ExitStack()
        self._ports: list[int] = []
        self._web: Child | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.console.erase()
        with self._stack:
            try:
                self.stop(self.children)
            finally:  # a second Ctrl-C cut the stopping short
                for each in self.children:
                    each.end()

    def prepare(self, acts: Sequence[Act]) -> None:
        """Start and migrate the database, and clear what the acts left in it before."""
        self.console.step("database", start_server())
        call_command("migrate", verbosity=0, interactive=False)
        check_tables()
        self.enter(alone())
        for act in acts:
            act.clear()
        self.directory = Path(self.enter(tempfile.TemporaryDirectory(prefix="delayed-queue-demo-")))
        self.environment = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "DEBUG": "0",  # under it Django keeps and times every query
            "SECRET_KEY": settings.SECRET_KEY,
            "PYTHONUNBUFFERED": "1",
        }
        self.login = create_login()
        for act in acts:
            act.prepare(self)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the stage is."""
        return self._stack.enter_context(context)

    def allow_calls(self, *ports: int) -> None:
        """Let this process and those started from now on call these ports of this machine."""
        self._ports += ports
        known: dict[str, Any] = settings.DELAYED_QUEUE
        calls = {"ALLOWED_NETWORKS": [f"{HOST}/32"], "ALLOWED_PORTS": list(self._ports)}
        calls = {**known.get("CALLBACKS", {}), **calls}
        self.enter(override_settings(DELAYED_QUEUE={**known, "CALLBACKS": calls}))
        self.environment |= {
            "CALLBACKS": "1", "CALLBACK_NETWORKS": f"{HOST}/32",
            "CALLBACK_PORTS": ",".join(map(str, self._ports)),
        }  # fmt: skip

    def start(
        self, name: str, *arguments: str, inherits: socket.socket | None = None, **environment: str
    ) -> Child:
        """Start a management command as a process of its own; it inherits the socket."""
        log = self.directory / f"{len(self.children) + 1}-{name}.log"
        with log.open("wb") as file:
            child = Child(
                [*self._manage, *arguments],
                stdin=subprocess.PIPE,  # its end tells the child that we are gone
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**self.environment, **environment},
                pass_fds=[inherits.fileno()] if inherits else [],
                start_new_session=True,  # Ctrl-C is for us; we stop them in order
                cwd=settings.BASE_DIR,
            )
        child.name, child.log = name, log
        self.children.append(child)
        return child

    def start_workers(self, count: int, name: str, *arguments: str) -> list[Child]:
        """Start so many, and return when each has told the database that it is up."""
        started_at = database_now()
        workers = [self.start(name, *WORKER, *arguments) for _ in range(count)]
        pids = {each.pid for each in workers}
        # Since then: a worker that was killed may have left a row with the same pid.
        rows = Worker.objects.filter(started_at__gte=started_at, pid__in=pids)

        def state() -> State:
            up = rows.count()
            return up, f"{up} of {count} processes are up"

        self.wait(lambda: rows.count() == count, state, START_SECONDS)
        self.console.step(name, f"{count} processes: {', '.join(map(str, sorted(pids)))}")
        return workers

    def replace(self, killed: Child, *arguments: str) -> Child:
        """Kill a worker with SIGKILL, and start another in its place."""
        killed.end()
        return self.start(killed.name, *WORKER, *arguments)

    def check(self) -> None:
        """Raise Stalled if a process has ended that should be running."""
        for child in self.children:
            if not child.may_end and not child.is_running:
                raise Stalled(
                    f"The {child.name} (process {child.pid}) ended by itself with exit code "
                    f"{child.returncode}. The end of its log:\n{child.tail()}"
                )

    def wait(
        self, until: Callable[[], bool], state: Callable[[], State], timeout: float = 0.0,
        every: float = LOOK_SECONDS,
    ) -> None:  # fmt: skip
        """Return once it is true; raise Stalled when nothing moves, or a process ends."""
        began, waiting = time.monotonic(), Patience(timeout or self.timeout)
        shown_at = began
        while not until():
            self.check()
            if time.monotonic() >= shown_at:
                moved, text = state()
                waiting.see(moved, text)
                self.console.progress(f"{time.monotonic() - began:3.0f} s  {text}")
                shown_at = time.monotonic() + LOOK_SECONDS
            time.sleep(every)

    def stop(self, children: Sequence[Child], seconds: float = STOP_SECONDS) -> list[int]:
        """Stop with SIGTERM, after so many seconds with SIGKILL; return the exit codes."""
        for each in children:
            each.may_end = True
            each.terminate()
        deadline = time.monotonic() + seconds
        return [each.end(max(deadline - time.monotonic(), 0)) for each in children]

    @property
    def web(self) -> str:
        """The address of the web server, with the admin and the APIs; started when first needed."""
        if self._web is None:
            # The child inherits it: a port that was only looked up could be another's by then.
            with listener() as own:
                self._address = f"http://{HOST}:{own.getsockname()[1]}"
                # DEBUG: it serves the admin's static files, too.
                self._web = self.start("web", "web", str(own.fileno()), inherits=own, DEBUG="1")
        # Until it is up, calls wait: the port is listened on already.
        return self._address

    @property
    def admin(self) -> str:
        return f"{self.web}{reverse('admin:index')}"

    def serve(self) -> None:
        """Keep a worker for everything and the admin up until interrupted."""
        self.stop([each for each in self.children if each is not self._web])
        self.console.step("serving", f"{self.admin} {self.login}; Ctrl-C stops")
        with suppress(KeyboardInterrupt):
            self.start("worker", *WORKER)
            while True:
                self.check()
                time.sleep(LOOK_SECONDS)
