"""OpenTelemetry traces: from the offer of a message to each run of its handler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from delayed_queue import __version__
from delayed_queue.exceptions import needing
from delayed_queue.instruments import Headers, ending
from delayed_queue.messages import Envelope

with needing("metrics", "delayed_queue.observe.tracing"):
    from opentelemetry import context, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# Trace context only, not the global propagators: baggage would store the caller's values beside
# the message.
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class OpenTelemetryInstrument:
    """Writes the trace context of an offer into its headers, and traces handlers under it.

    A handler's span is linked to the offer's, and its child. Spans have ids and never payloads.
    ``record_exceptions=False`` leaves out the texts of errors and keeps their types.
    """

    def __init__(
        self,
        *,
        record_exceptions: bool = True,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        self._record_exceptions = record_exceptions
        self._tracer = trace.get_tracer("delayed_queue", __version__, tracer_provider)

    def offering(self, queue: str, headers: Headers | None) -> Headers | None:
        if headers is not None and _PROPAGATOR.fields & headers.keys():
            return headers  # the caller has chosen the trace
        span = self._tracer.start_span(
            f"offer {queue}",
            kind=SpanKind.PRODUCER,
            attributes={**_destination(queue), **_operation("create", "offer")},
        )
        # Ended before the message is stored: the span stands for the message, not for the call.
        span.end()
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
        return {**(headers or {}), **carrier} if carrier else headers

    @contextmanager
    def handling(self, envelope: Envelope) -> Iterator[None]:
        with self._span(envelope) as span:
            try:
                yield
            except BaseException as error:
                self._record(span, error)
                raise
            span.set_attribute("delayed_queue.outcome", ending(None))

    def _span(self, envelope: Envelope) -> Any:
        offered = _PROPAGATOR.extract(_carrier(envelope.headers), context.Context())
        origin = trace.get_current_span(offered).get_span_context()
        return self._tracer.start_as_current_span(
            f"handle {envelope.handler or envelope.queue}",
            context=offered,
            kind=SpanKind.CONSUMER,
            attributes=_attributes(envelope),
            links=[Link(origin)] if origin.is_valid else [],
            record_exception=False,
            set_status_on_exception=False,
        )

    def _record(self, span: Span, error: BaseException) -> None:
        """Record the outcome of the handler; Snooze and Reject are not errors."""
        outcome = ending(error)
        span.set_attribute("delayed_queue.outcome", outcome)
        if outcome == "failed":
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR))
            if self._record_exceptions:
                span.record_exception(error)


def _carrier(headers: Mapping[str, Any]) -> dict[str, str]:
    # Headers may be any JSON of another service.
    return {
        name: value
        for name in _PROPAGATOR.fields
        if isinstance(value := headers.get(name), str)
    }  # fmt: skip


def _destination(queue: str) -> dict[str, str]:
    return {"messaging.system": "delayed_queue", "messaging.destination.name": queue}


def _operation(kind: str, name: str) -> dict[str, str]:
    return {"messaging.operation.type": kind, "messaging.operation.name": name}


def _attributes(envelope: Envelope) -> dict[str, str | int]:
    named = {"code.function.name": envelope.handler} if envelope.handler else {}
    return {
        **named,
        **_destination(envelope.queue),
        **_operation("process", "handle"),
        "messaging.message.id": envelope.key,
        "delayed_queue.attempt": envelope.attempt,
        "delayed_queue.lease": envelope.lease_id,
        "delayed_queue.delivery_type": envelope.delivery_type.value,
    }
