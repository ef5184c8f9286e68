"""Django signals of the worker; ``logs`` has the receivers that write its log.

Each is sent with ``send_robust``: a receiver that fails is logged and changes nothing.

``leased(sender, envelopes)`` after a claim; ``acknowledged(sender, envelopes)`` after the
deletion committed; ``failed(sender, envelope, error, delay)`` after a retry was scheduled;
``dead(sender, envelope, reason, error)`` after a message became a dead letter, ``error`` being
the exception that its handler raised;
``worker_started(sender)``, ``worker_stopped(sender)``. The sender is the worker.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django.dispatch import Signal

logger = logging.getLogger("delayed_queue")

leased: Final = Signal()
acknowledged: Final = Signal()
failed: Final = Signal()
dead: Final = Signal()
worker_started: Final = Signal()
worker_stopped: Final = Signal()


def announce(signal: Signal, sender: Any, **named: Any) -> None:
    """Send to every receiver; log those that raise."""
    if not signal.has_listeners():
        return
    for receiver, answer in signal.send_robust(sender, **named):
        if isinstance(answer, Exception):
            logger.error("event=receiver_failed receiver=%s", _name_of(receiver), exc_info=answer)


def _name_of(receiver: Any) -> str:
    named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{named.__module__}.{named.__qualname__}"
