"""Failed handlers as issues of Sentry, by its own SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sentry_sdk

from delayed_queue.handlers import HandlerSignal
from delayed_queue.instruments import Instrument
from delayed_queue.messages import Envelope
from delayed_queue.observe import signals


class SentryInstrument(Instrument):
    """Reports each failed attempt with queue, key and attempt, in a scope of its own.

    The scope also applies to what the handler itself reports. ``Snooze``, ``Retry`` and ``Reject``
    are not errors. The project initialises the SDK; its ``include_local_variables`` decides about
    local variables, which may hold payloads. A worker flushes the SDK when it stops.
    """

    def __init__(self) -> None:
        signals.worker_stopped.connect(_flush)

    @contextmanager
    def handling(self, envelope: Envelope) -> Iterator[None]:
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            scope.set_transaction_name(f"handle {envelope.handler or envelope.queue}")
            scope.set_tag("delayed_queue.queue", envelope.queue)
            scope.set_tag("delayed_queue.key", envelope.key)
            scope.set_tag("delayed_queue.attempt", envelope.attempt)
            try:
                yield
            except HandlerSignal:
                raise
            except Exception as error:
                sentry_sdk.capture_exception(error)
                raise


def _flush(**_: object) -> None:
    sentry_sdk.flush()
