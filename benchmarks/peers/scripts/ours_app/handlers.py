"""The jobs: one that does nothing, one that notes when it was started."""

from __future__ import annotations

import protocol

from delayed_queue import Groups, handler

options = {"transactional": True} if protocol.OPTIONS.get("transactional") else {}
if "limits" in protocol.OPTIONS:
    options["groups"] = Groups(**protocol.OPTIONS["limits"])


@handler("benchmark", **options)
def noop(envelope) -> None:
    """Do nothing, or what takes so long."""
    if protocol.is_observed():
        protocol.observe(envelope.group)


@handler("benchmark-stamped")
def stamped(envelope) -> None:
    protocol.stamp(envelope.payload)
