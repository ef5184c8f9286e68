"""The admin while the demo is being watched."""

from __future__ import annotations

import socket
from typing import Final

from django.urls import reverse

from example_project.demo.exceptions import DemoError

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 8000
TRIED_PORTS: Final = 50


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


def admin_address(port: int) -> str:
    return f"http://{HOST}:{port}{reverse('admin:index')}"
