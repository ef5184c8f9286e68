"""Django signals of the worker, and the receivers that write its log.

Each is sent with ``send_robust``: a receiver that fails is logged and changes nothing.

``leased(sender, envelopes)`` after a claim; ``acknowledged(sender, envelopes)`` after the
deletion committed; ``failed(sender, envelope, error, delay)`` after a retry was scheduled;
``dead(sender, envelope, reason)`` after a message became a dead letter;
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
            logger.error("event=receiver_failed receiver=%r", receiver, exc_info=answer)


def _log_failed(*, envelope: Any, error: BaseException, delay: Any, **kwargs: Any) -> None:
    # Ids only: payloads and exception texts may hold personal data.
    logger.warning(
        "event=failed queue=%s key=%s attempt=%s error=%s retry_in_s=%.3f",
        envelope.queue, envelope.key, envelope.attempt, type(error).__name__,
        delay.total_seconds(),
    )  # fmt: skip


def _log_dead(*, envelope: Any, reason: str, **kwargs: Any) -> None:
    logger.error(
        "event=dead queue=%s key=%s attempt=%s", envelope.queue, envelope.key, envelope.attempt
    )


def _log_started(*, sender: Any, **kwargs: Any) -> None:
    logger.info("event=worker_started worker=%s", sender)


def _log_stopped(*, sender: Any, **kwargs: Any) -> None:
    logger.info("event=worker_stopped worker=%s", sender)


failed.connect(_log_failed, dispatch_uid="delayed_queue.log")
dead.connect(_log_dead, dispatch_uid="delayed_queue.log")
worker_started.connect(_log_started, dispatch_uid="delayed_queue.log")
worker_stopped.connect(_log_stopped, dispatch_uid="delayed_queue.log")
