"""A handler that does nothing, and one that writes down when it was called."""

from __future__ import annotations

import protocol

from delayed_queue import Groups, handler

options = dict(protocol.OPTIONS.get("handler", {}))
if "limits" in protocol.OPTIONS:
    options["groups"] = Groups(**protocol.OPTIONS["limits"])


@handler("benchmark", **options)
def noop(envelope) -> None:
    """Do nothing."""


@handler("stamped")
def stamped(envelope) -> None:
    protocol.stamp(envelope.payload)
