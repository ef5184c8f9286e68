"""The log: lines of ``key=value``, ids only, and the receivers that turn signals into them.

Payloads stay out, and so do the texts of handlers' errors and reasons: they may hold personal
data; ``LOG_ERRORS`` adds the errors with their tracebacks.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from delayed_queue.conf import logs_errors
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


def log(level: int, event: str, error: BaseException | None = None, /, **fields: Any) -> None:
    """Write one line, ``event=… name=value …``; a value that could break or fake one is quoted.

    The record has the event as ``record.event`` and the values as ``record.fields``, for handlers
    that write JSON; ``error`` goes with its traceback.
    """
    if not logger.isEnabledFor(level):
        return
    template = "event=" + event + "".join(f" {name}=%s" for name in fields)
    values = [quoted(str(value)) for value in fields.values()]
    extra = {"event": event, "fields": fields}
    logger.log(level, template, *values, exc_info=error, extra=extra, stacklevel=2)


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


def _ids(envelope: Envelope) -> dict[str, Any]:
    named = {"handler": envelope.handler} if envelope.handler else {}
    return {"queue": envelope.queue, "key": envelope.key, "attempt": envelope.attempt, **named}


def _log_leased(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    for each in envelopes:
        log(logging.DEBUG, "leased", **_ids(each), lease=each.lease_id, worker=sender)


def _log_acknowledged(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    for queue, count in Counter(each.queue for each in envelopes).items():
        log(logging.DEBUG, "batch_acknowledged", queue=queue, count=count, worker=sender)
    for each in envelopes:
        log(logging.DEBUG, "acknowledged", **_ids(each), lease=each.lease_id, worker=sender)


def _log_failed(
    *, sender: Any, envelope: Envelope, error: BaseException, delay: timedelta, **kwargs: Any
) -> None:
    shown = error if logs_errors() else None
    fields = {"error": type(error).__name__, "retry_in_s": f"{delay.total_seconds():.3f}"}
    log(logging.WARNING, "failed", shown, **_ids(envelope), **fields, worker=sender)


def _log_dead(
    *, sender: Any, envelope: Envelope, error: BaseException | None = None, **kwargs: Any
) -> None:
    shown = error if logs_errors() else None
    log(logging.ERROR, "dead", shown, **_ids(envelope), worker=sender)


def _log_started(*, sender: Any, **kwargs: Any) -> None:
    log(logging.INFO, "worker_started", worker=sender)


def _log_stopped(*, sender: Any, **kwargs: Any) -> None:
    log(logging.INFO, "worker_stopped", worker=sender)
