"""The jobs: one that does nothing, one that notes when it was started."""

from __future__ import annotations

import protocol

from delayed_queue import handler

transactional = {"transactional": True} if protocol.OPTIONS.get("transactional") else {}


@handler("benchmark", **transactional)
def noop(envelope) -> None:
    """Do nothing."""


@handler("benchmark-stamped")
def stamped(envelope) -> None:
    protocol.stamp(envelope.payload)
