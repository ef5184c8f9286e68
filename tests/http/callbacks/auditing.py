"""Record every socket that a thread makes, from Python's audit events."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

EVENTS = {
    "socket.__new__",
    "socket.connect",
    "socket.getaddrinfo",
    "socket.gethostbyname",
    "socket.sendto",
    "socket.bind",
}


@dataclass
class Audit:
    """Socket events of one thread, while it was watched."""

    thread: int
    events: list[tuple[str, Any]] = field(default_factory=list)

    @property
    def connected(self) -> list[str]:
        """Return the dialled addresses."""
        return [arguments[1][0] for name, arguments in self.events if name == "socket.connect"]


_watching: dict[int, Audit] = {}


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event in EVENTS and (audit := _watching.get(threading.get_ident())) is not None:
        audit.events.append((event, arguments))


# Python cannot remove a hook: one serves the whole process.
sys.addaudithook(_hook)


@contextmanager
def audited() -> Iterator[Audit]:
    """Watch the sockets of this thread."""
    audit = _watching[threading.get_ident()] = Audit(threading.get_ident())
    try:
        yield audit
    finally:
        del _watching[audit.thread]
