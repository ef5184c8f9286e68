"""What the acts play on: the database, the processes, the web server, the console."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from delayed_queue.models import Worker
from example_project.demo import database
from example_project.demo.acts import Act
from example_project.demo.console import Console
from example_project.demo.patience import SECONDS, Patience
from example_project.demo.processes import MANAGE, Child, Children
from example_project.demo.webserver import WebServer, free_port

SERVING_SECONDS: Final = 0.5
LOOK_SECONDS: Final = 0.05
WORKERS_SECONDS: Final = SECONDS
LOOPBACK: Final = "127.0.0.1/32"
T = TypeVar("T")


class Stage:
    """A block in which acts can be run, and after which none of its processes is left."""

    def __init__(
        self, console: Console, manage: Sequence[str] = MANAGE, patience: float = SECONDS
    ) -> None:
        self.console = console
        self.patience = patience
        self.login = ("", "")
        self._manage = manage
        self._stack = ExitStack()
        self._web: WebServer | None = None

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def prepare(self, acts: Sequence[Act]) -> None:
        """Start and migrate the database, and clear what the acts left in it before."""
        self.console.step("database", database.start_server())
        database.migrate()
        self.enter(database.alone())
        for act in acts:
            act.clear()
        directory = tempfile.TemporaryDirectory(prefix="delayed-queue-demo-")
        self.directory = Path(self.enter(directory))
        self.children: Children = self.enter(Children(self.directory, self._manage))
        self.login = database.create_login()
        for act in acts:
            act.prepare(self)

    def allow_calls(self, *ports: int) -> None:
        """Let the processes that are started from now on call these ports of this machine."""
        environment = self.children.environment
        known = environment.get("CALLBACK_PORTS", "").split(",")
        environment["CALLBACK_PORTS"] = ",".join([*filter(None, known), *map(str, ports)])
        environment |= {"CALLBACKS": "1", "CALLBACK_NETWORKS": LOOPBACK}

    def wait_for(self, workers: Sequence[Child], started_at: datetime) -> None:
        """Return when each has told of itself; raises Stalled when one ends or takes too long."""
        # Since then: a worker that was killed may have left a row with the same pid.
        rows = Worker.objects.filter(started_at__gte=started_at)
        wanted = {each.pid for each in workers}
        patience = Patience(WORKERS_SECONDS)
        while missing := wanted - set(rows.values_list("pid", flat=True)):
            self.children.check()
            patience.see(missing, f"{len(missing)} workers are not up")
            time.sleep(LOOK_SECONDS)

    def enter(self, context: AbstractContextManager[T]) -> T:
        """Enter a context that is left when the stage is."""
        return self._stack.enter_context(context)

    @property
    def web(self) -> WebServer:
        """The web server, with the admin and the APIs; started when it is first needed."""
        if self._web is None:
            self._web = WebServer(self.children)
            self._web.start()
            self.console.step("web", f"{self._web.address}/ with the admin and the APIs")
        return self._web

    @property
    def account(self) -> str:
        user, password = self.login
        return f"(user {user}, password {password})"

    def how_to_serve(self) -> str:
        """Say how to look at the admin once the stage is gone."""
        return f"`DEBUG=1 python manage.py runserver {free_port()}`, then /admin/  {self.account}"

    def _stop_what_is_left(self) -> None:
        """Stop what an act that did not get to its end has left running, or has lost."""
        is_web = self._web and self._web.child
        self.children.stop([each for each in self.children.all if each is not is_web])

    def serve(self) -> None:
        """Keep a worker for everything and the admin up until interrupted."""
        self._stop_what_is_left()
        self.console.step("serving", f"{self.web.admin}; Ctrl-C stops")
        self.children.start("worker", "runqueueworker", "--no-color")
        with suppress(KeyboardInterrupt):
            while True:
                self.children.check()
                time.sleep(SERVING_SECONDS)
