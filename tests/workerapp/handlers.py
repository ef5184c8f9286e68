"""Handlers whose conduct the message asks for."""

from __future__ import annotations

import os
import sys
import threading
from datetime import timedelta
from importlib import import_module

from delayed_queue import Envelope, Reject, RetryPolicy, Snooze, handler
from tests.workerapp.models import Effect

# What tests of the command line say by the environment: a module to import, a mistake that only
# the processes of a supervisor meet.
if more := os.environ.get("MORE_HANDLERS"):
    import_module(more)
if os.environ.get("BREAK_CHILDREN") and "--child" in sys.argv:
    raise RuntimeError("broken in the child")

QUICK = RetryPolicy.ladder("100ms 100ms")


@handler("ledger", retry=QUICK)
def record(envelope: Envelope) -> None:
    """Write one row for each delivery."""
    Effect.objects.create(
        queue=envelope.queue, key=envelope.key, attempt=envelope.attempt, pid=os.getpid()
    )


@handler("stuck", retry=QUICK)
def hang(envelope: Envelope) -> None:
    """Write the row, and never return."""
    record(envelope)
    threading.Event().wait()


@handler("conduct", retry=QUICK)
def behave(envelope: Envelope) -> None:
    """Do what the payload names."""
    record(envelope)
    match envelope.payload:
        case "fail":
            raise ValueError("asked to fail")
        case "fail once" if envelope.attempt == 1:
            raise ValueError("asked to fail once")
        case "hang once" if envelope.attempt == 1:
            threading.Event().wait()
        case "snooze" if Effect.objects.filter(queue="conduct", key=envelope.key).count() == 1:
            raise Snooze(timedelta(milliseconds=50))
        case "reject":
            raise Reject("asked to be rejected")
        case "exit":
            raise SystemExit(3)
        case "die":
            os._exit(9)


@handler("awaited", retry=QUICK)
async def record_async(envelope: Envelope) -> None:
    await Effect.objects.acreate(
        queue=envelope.queue, key=envelope.key, attempt=envelope.attempt, pid=os.getpid()
    )
