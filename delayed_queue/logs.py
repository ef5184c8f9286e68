"""The log of workers: the receivers that turn signals into ``key=value`` lines, ids only.

Payloads stay out, and so do the texts of errors and reasons: they may hold personal data.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from delayed_queue import signals
from delayed_queue.messages import Envelope

logger = logging.getLogger("delayed_queue")

_PLAIN: Final = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\xa0\u2028\u2029]+")


def quoted(value: str) -> str:
    """Return the value as it can stand in a line, quoted when it would break or fake one.

    Keys are the callers' text: one with a line break could forge an event.
    """
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


def connect() -> None:
    """Connect the receivers, once however often it is called."""
    for signal, receiver in (
        (signals.leased, _log_leased),
        (signals.acknowledged, _log_acknowledged),
        (signals.failed, _log_failed),
        (signals.dead, _log_dead),
        (signals.worker_started, _log_started),
        (signals.worker_stopped, _log_stopped),
    ):
        signal.connect(receiver, dispatch_uid="delayed_queue.log")


def _log_leased(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        for each in envelopes:
            logger.debug(
                "event=leased queue=%s key=%s attempt=%s lease=%s worker=%s",
                quoted(each.queue), quoted(each.key), each.attempt, each.lease_id, sender,
            )  # fmt: skip


def _log_acknowledged(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    for queue, count in Counter(each.queue for each in envelopes).items():
        logger.info(
            "event=batch_acknowledged queue=%s count=%s worker=%s", quoted(queue), count, sender
        )
    if logger.isEnabledFor(logging.DEBUG):
        for each in envelopes:
            logger.debug(
                "event=acknowledged queue=%s key=%s attempt=%s lease=%s worker=%s",
                quoted(each.queue), quoted(each.key), each.attempt, each.lease_id, sender,
            )  # fmt: skip


def _log_failed(
    *, sender: Any, envelope: Envelope, error: BaseException, delay: timedelta, **kwargs: Any
) -> None:
    logger.warning(
        "event=failed queue=%s key=%s attempt=%s error=%s retry_in_s=%.3f worker=%s",
        quoted(envelope.queue), quoted(envelope.key), envelope.attempt, type(error).__name__,
        delay.total_seconds(), sender,
    )  # fmt: skip


def _log_dead(*, sender: Any, envelope: Envelope, **kwargs: Any) -> None:
    logger.error(
        "event=dead queue=%s key=%s attempt=%s worker=%s",
        quoted(envelope.queue), quoted(envelope.key), envelope.attempt, sender,
    )  # fmt: skip


def _log_started(*, sender: Any, **kwargs: Any) -> None:
    logger.info("event=worker_started worker=%s", sender)


def _log_stopped(*, sender: Any, **kwargs: Any) -> None:
    logger.info("event=worker_stopped worker=%s", sender)
