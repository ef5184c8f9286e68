"""Handlers for machines that have only this file and the package in a zip."""

from __future__ import annotations

import threading
from pathlib import Path
from uuid import uuid4

from delayed_queue import Envelope, Reject


def answer(envelope: Envelope) -> None:
    """Reject messages with the payload "reject"."""
    if envelope.payload == "reject":
        raise Reject("no such order")


def gated(envelope: Envelope) -> None:
    """Record the call; wait until the directory in the payload, if any, has no gate."""
    if not isinstance(envelope.payload, str):
        return
    directory, pause = Path(envelope.payload), threading.Event()
    (directory / f"reached-{uuid4().hex}").touch()
    for _ in range(6000):
        if not (directory / "gate").exists():
            return
        pause.wait(0.02)
    raise TimeoutError("the gate was not opened in time")
