"""Django signals of the worker, and the receivers that write its log.

Each is sent with ``send_robust``: a receiver that fails is logged and changes nothing. The sender
is the worker; ``process_died`` is sent by the supervisor. The guide lists their arguments.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.dispatch import Signal

from delayed_queue.conf import logs_errors
from delayed_queue.db.own import using_projects_connection
from delayed_queue.logs import log, logger
from delayed_queue.messages import Envelope

leased: Final = Signal()
acknowledged: Final = Signal()
expired: Final = Signal()
failed: Final = Signal()
dead: Final = Signal()
refused: Final = Signal()
worker_started: Final = Signal()
worker_stopped: Final = Signal()
process_died: Final = Signal()

_UID: Final = "delayed_queue.log"


def announce(signal: Signal, sender: Any, **named: Any) -> None:
    """Send to every receiver; log the receivers that raise."""
    if not signal.has_listeners():
        return
    with using_projects_connection():
        answers = signal.send_robust(sender, **named)
    for receiver, answer in answers:
        if isinstance(answer, Exception):
            log(logging.ERROR, "receiver_failed", answer, receiver=_name_of(receiver))


def _name_of(receiver: Any) -> str:
    named = receiver if hasattr(receiver, "__qualname__") else type(receiver)
    return f"{named.__module__}.{named.__qualname__}"


def connect() -> None:
    """Connect the receivers whose lines pass the present log level.

    A worker collects no envelopes for a signal without receivers.
    """
    for signal, receiver, level in (
        (leased, _log_leased, logging.DEBUG),
        # DEBUG: a busy worker acknowledges hundreds of times a second.
        (acknowledged, _log_acknowledged, logging.DEBUG),
        (expired, _log_expired, logging.INFO),
        (failed, _log_failed, logging.WARNING),
        (dead, _log_dead, logging.ERROR),
        (refused, _log_refused, logging.ERROR),
        (worker_started, _log_started, logging.INFO),
        (worker_stopped, _log_stopped, logging.INFO),
    ):
        signal.disconnect(dispatch_uid=_UID)
        if logger.isEnabledFor(level):
            signal.connect(receiver, dispatch_uid=_UID)


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


def _log_expired(*, sender: Any, envelopes: Sequence[Envelope], **kwargs: Any) -> None:
    for each in envelopes:
        log(logging.INFO, "expired", **_ids(each), worker=sender)


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


def _log_refused(
    *, sender: Any, envelope: Envelope, error: BaseException, sqlstate: str, **kwargs: Any
) -> None:
    shown = error if logs_errors() else None
    fields = {"sqlstate": sqlstate, "error": type(error).__name__}
    log(logging.ERROR, "write_refused", shown, **_ids(envelope), **fields, worker=sender)


def _log_started(*, sender: Any, **kwargs: Any) -> None:
    log(logging.INFO, "worker_started", worker=sender)


def _log_stopped(*, sender: Any, **kwargs: Any) -> None:
    log(logging.INFO, "worker_stopped", worker=sender)
