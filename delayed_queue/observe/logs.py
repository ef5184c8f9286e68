"""The log of workers: the receivers that turn signals into ``key=value`` lines, ids only.

Payloads stay out, and so do the texts of handlers' errors and reasons: they may hold personal
data. What comes from outside goes through ``quoted()``.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from delayed_queue.messages import Envelope
from delayed_queue.observe import signals

logger = logging.getLogger("delayed_queue")

_UID: Final = "delayed_queue.log"
_PLAIN: Final = re.compile(r"[^\s\"=\\\x00-\x1f\x7f-\xa0\u2028\u2029]+")


def quoted(value: str) -> str:
    """Return the value as it can stand in a line, quoted when it would break or fake one.

    Keys are the callers' text: one with a line break could forge an event.
    """
    return value if _PLAIN.fullmatch(value) else json.dumps(value)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def described(error: BaseException) -> str:
    """Return the type and the first line of an error of the database or the machine, quoted."""
    return quoted(f"{type(error).__name__}: {first_line(error)}")


def connect() -> None:
    """Connect the receivers whose lines the level lets through, as it is now, and no others.

    A worker does not even gather the envelopes of a signal that nobody hears.
    """
    for signal, receiver, level in (
        (signals.leased, _log_leased, logging.DEBUG),
        # Not at INFO: a busy worker acknowledges hundreds of times a second.
        (signals.acknowledged, _log_acknowledged, logging.DEBUG),
        (signals.failed, _log_failed, logging.WARNING),
        (signals.dead, _log_dead, logging.ERROR),
        (signals.worker_started, _log_started, logging.INFO),
        (signals.worker_stopped, _log_stopped, logging.INFO),
    ):
        signal.disconnect(dispatch_uid=_UID)
        if logger.isEnabledFor(level):
            signal.connect(receiver, dispatch_uid=_UID)


def log_poll(queue: str, keys: Sequence[str]) -> None:
    """Tell of one look at a queue, that found nothing too: how many, and which."""
    if logger.isEnabledFor(logging.DEBUG):
        listed = ",".join(map(quoted, keys))
        logger.debug("event=polled queue=%s count=%s keys=%s", quoted(queue), len(keys), listed)


def _name(worker: Any) -> str:
    return quoted(str(worker))


def _log_leased(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    for each in envelopes:
        logger.debug(
            "event=leased queue=%s key=%s attempt=%s lease=%s worker=%s",
            quoted(each.queue), quoted(each.key), each.attempt, each.lease_id, _name(sender),
        )  # fmt: skip


def _log_acknowledged(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    for queue, count in Counter(each.queue for each in envelopes).items():
        logger.debug(
            "event=batch_acknowledged queue=%s count=%s worker=%s",
            quoted(queue),
            count,
            _name(sender),
        )
    for each in envelopes:
        logger.debug(
            "event=acknowledged queue=%s key=%s attempt=%s lease=%s worker=%s",
            quoted(each.queue), quoted(each.key), each.attempt, each.lease_id, _name(sender),
        )  # fmt: skip


def _log_failed(
    *, sender: Any, envelope: Envelope, error: BaseException, delay: timedelta, **kwargs: Any
) -> None:
    logger.warning(
        "event=failed queue=%s key=%s attempt=%s error=%s retry_in_s=%.3f worker=%s",
        quoted(envelope.queue), quoted(envelope.key), envelope.attempt, type(error).__name__,
        delay.total_seconds(), _name(sender),
    )  # fmt: skip


def _log_dead(*, sender: Any, envelope: Envelope, **kwargs: Any) -> None:
    logger.error(
        "event=dead queue=%s key=%s attempt=%s worker=%s",
        quoted(envelope.queue), quoted(envelope.key), envelope.attempt, _name(sender),
    )  # fmt: skip


def _log_started(*, sender: Any, **kwargs: Any) -> None:
    logger.info("event=worker_started worker=%s", _name(sender))


def _log_stopped(*, sender: Any, **kwargs: Any) -> None:
    logger.info("event=worker_stopped worker=%s", _name(sender))
