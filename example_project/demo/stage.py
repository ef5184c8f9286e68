"""The helper of all acts: it starts processes, waits for what they do, and leaves none behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from django.conf import settings
from django.test.utils import override_settings
from django.urls import reverse

from delayed_queue.models import Worker
from example_project.demo import database
from example_project.demo.checks import Outcome
from example_project.demo.clients import Threads
from example_project.demo.console import Console, Patience, Stalled

MANAGE: Final = (sys.executable, "-m", "example_project.demo.child")
WORKER: Final = ("runqueueworker", "--processes", "0", "--no-color")
HOST: Final = "127.0.0.1"
# The port that is tried before any other.
FIRST_PORT: Final = 8000
TIMEOUT_SECONDS: Final = 60.0
START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 0.25
T = TypeVar("T")


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


class Child(subprocess.Popen[bytes]):
    """A management command as a process of its own, its log in a file."""

    name: str
    log: Path
    may_end = False

    def tell(self, line: str) -> None:
        """Write a line to its input; one that has ended is found by ``Stage.check``."""
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
        self._threads: list[Threads] = []

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

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the stage is."""
        return self._stack.enter_context(context)

    def prepare(self, acts: Sequence[Act]) -> None:
        """Start and migrate the database, and clear what the acts left in it before."""
        self.console.step("database", database.start())
        self.enter(database.alone())
        for act in acts:
            act.clear()
        self.directory = Path(self.enter(tempfile.TemporaryDirectory(prefix="delayed-queue-demo-")))
        self.environment = {
            **os.environ,
            "DATABASE_URL": database.url(),
            "DEBUG": "0",  # under it Django keeps and times every query
            "SECRET_KEY": settings.SECRET_KEY,
            "PYTHONUNBUFFERED": "1",
        }
        self.login = database.create_login()
        for act in acts:
            act.prepare(self)

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

    # Processes

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
        started_at = database.now()
        workers = [self.start(name, *WORKER, *arguments) for _ in range(count)]
        pids = sorted(each.pid for each in workers)
        # Since then: a worker that was killed may have left a row with the same pid.
        up = Worker.objects.filter(started_at__gte=started_at, pid__in=pids)
        self.wait(
            lambda: up.count() == count, lambda: f"{up.count()} of {count} processes are up",
            START_SECONDS,
        )  # fmt: skip
        self.console.step(name, f"{count} processes: {', '.join(map(str, pids))}")
        return workers

    def replace(self, killed: Child, *arguments: str) -> Child:
        """Kill a worker with SIGKILL, and start another in its place."""
        killed.end()
        return self.start(killed.name, *WORKER, *arguments)

    def stop(self, children: Sequence[Child]) -> list[int]:
        """Stop with SIGTERM, after a while with SIGKILL; return the codes of those not killed."""
        ours = [each for each in children if not each.may_end]
        for each in ours:
            each.may_end = True
            each.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        return [each.end(max(deadline - time.monotonic(), 0)) for each in ours]

    @contextmanager
    def threads(self) -> Iterator[Threads]:
        """Give threads of this process, whose failure ends what is waited for."""
        with Threads() as found:
            self._threads.append(found)
            try:
                yield found
            finally:
                self._threads.remove(found)

    # Waiting

    def wait(
        self, until: Callable[[], bool], state: Callable[[], str], timeout: float = 0.0,
        every: float = LOOK_SECONDS,
    ) -> None:  # fmt: skip
        """Return once it is true; raise Stalled when the state stays the same, or something fails.

        The state says in words how things stand, and so must change as long as they move.
        """
        began, waiting = time.monotonic(), Patience(timeout or self.timeout)
        shown_at = began
        while not until():
            self.check()
            if time.monotonic() >= shown_at:
                text = state()
                waiting.see(text)
                self.console.progress(f"{time.monotonic() - began:3.0f} s  {text}")
                shown_at = time.monotonic() + LOOK_SECONDS
            time.sleep(every)

    def check(self) -> None:
        """Raise Stalled if a process has ended that should be running, or a thread has failed."""
        for child in self.children:
            child.check()
        for error in filter(None, (each.error for each in self._threads)):
            raise Stalled(f"A client failed: {type(error).__name__}: {error}") from error

    # The web server

    @cached_property
    def web(self) -> str:
        """The address of the web server, with the admin and the APIs; started when first needed."""
        # The child inherits the port: one that was only looked up could be another's by then.
        with listener() as own:
            # DEBUG: it serves the admin's static files, too.
            self._web = self.start("web", "web", str(own.fileno()), inherits=own, DEBUG="1")
            # Until it is up, calls wait: the port is listened on already.
            return f"http://{HOST}:{own.getsockname()[1]}"

    @property
    def admin(self) -> str:
        return f"{self.web}{reverse('admin:index')} {self.login}"

    def serve(self) -> None:
        """Keep a worker for everything and the admin up until interrupted."""
        address = self.admin
        self.stop([each for each in self.children if each is not self._web])
        self.console.step("serving", f"{address}; Ctrl-C stops")
        with suppress(KeyboardInterrupt):
            self.start("worker", *WORKER)
            while True:
                self.check()
                time.sleep(LOOK_SECONDS)


def listener() -> socket.socket:
    """Listen on the port 8000, or on any that is free."""
    try:
        return socket.create_server((HOST, FIRST_PORT))
    except OSError:
        return socket.create_server((HOST, 0))
