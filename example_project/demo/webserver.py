"""The web server of the demo: the admin and the APIs, under uvicorn."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Final

from django.urls import reverse

from example_project.demo.exceptions import DemoError
from example_project.demo.processes import Child, Children

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 8000
TRIED_PORTS: Final = 50
START_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.05


def free_port() -> int:
    """Return the first port from 8000 on that nothing listens on."""
    with _listener() as found:
        return int(found.getsockname()[1])


def _listener() -> socket.socket:
    """Listen on the first port from 8000 on that is free."""
    for port in range(FIRST_PORT, FIRST_PORT + TRIED_PORTS):
        with suppress(OSError):
            return socket.create_server((HOST, port))
    raise DemoError(f"No port from {FIRST_PORT} to {FIRST_PORT + TRIED_PORTS - 1} is free.")


def serve(descriptor: int) -> None:
    """Be the server, on the listening socket that the parent has passed on."""
    # Here: nothing else of the demo needs it.
    import uvicorn

    config = uvicorn.Config("example_project.asgi:application", log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


class WebServer:
    """A process of its own, up when ``start()`` returns."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self.child: Child | None = None
        # The child inherits it: a port that was only looked up could be another's by then.
        self._listener = _listener()
        self.address = f"http://{HOST}:{self._listener.getsockname()[1]}"

    @property
    def admin(self) -> str:
        return f"{self.address}{reverse('admin:index')}"

    def start(self) -> None:
        """Start it and wait until it answers; raises DemoError when it does not."""
        inherited = self._listener.fileno()
        # DEBUG: it serves the admin's static files, too.
        self.child = self._children.start(
            "web server", "web", str(inherited), inherits=[inherited], DEBUG="1"
        )
        self.close()
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            self._children.check()
            if time.monotonic() > deadline:
                raise DemoError(f"The web server does not answer at {self.address}.")
            time.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """Give the port up; once started, the process has it."""
        self._listener.close()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.admin}login/", timeout=5):  # noqa: S310 # ours
                return True
        except (OSError, urllib.error.URLError):
            return False
