"""The web server of the demo: the admin and the APIs, under uvicorn."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from typing import Final

from django.urls import reverse

from example_project.demo.exceptions import DemoError
from example_project.demo.processes import Child, Children

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 8000
TRIED_PORTS: Final = 50
START_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.05


def free_port() -> int:
    """Return the first port from 8000 on that nothing listens on."""
    for port in range(FIRST_PORT, FIRST_PORT + TRIED_PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise DemoError(f"No port from {FIRST_PORT} to {FIRST_PORT + TRIED_PORTS - 1} is free.")


class WebServer:
    """A process of its own, up when ``start()`` returns."""

    def __init__(self, children: Children) -> None:
        self._children = children
        self._child: Child | None = None
        self.address = f"http://{HOST}:{free_port()}"

    @property
    def admin(self) -> str:
        return f"{self.address}{reverse('admin:index')}"

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.is_running

    def start(self) -> None:
        """Start it and wait until it answers; raises DemoError when it does not."""
        port = self.address.rpartition(":")[2]
        # DEBUG: it serves the admin's static files, too.
        self._child = self._children.start(
            "web server", "uvicorn", "example_project.asgi:application",
            "--host", HOST, "--port", port, "--log-level", "warning", "--lifespan", "off",
            DEBUG="1",
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            self._children.check()
            if time.monotonic() > deadline:
                raise DemoError(f"The web server does not answer at {self.address}.")
            time.sleep(LOOK_SECONDS)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.admin}login/", timeout=5):  # noqa: S310 # ours
                return True
        except (OSError, urllib.error.URLError):
            return False
