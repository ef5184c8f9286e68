"""OpenTelemetry traces from an offer through a worker to the handler (W13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.conf import LazySettings
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from delayed_queue import (
    DelayedQueue,
    Envelope,
    OfferOutcome,
    Reject,
    RetryPolicy,
    ScheduledMessage,
    Snooze,
)
from delayed_queue.observe.tracing import OpenTelemetryInstrument
from delayed_queue.testing import InMemoryQueue
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.factories import from_now
from tests.support.instruments import registry_of

SECRET = "4111-1111-1111-1111"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Traces:
    """A provider of tracers that records spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("tests")

    def named(self, name: str) -> list[ReadableSpan]:
        return [each for each in self.exporter.get_finished_spans() if each.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traces(settings: LazySettings) -> Traces:
    made = Traces()
    use(settings, made)
    return made


def use(settings: LazySettings, traces: Traces, **options: Any) -> None:
    instrument = OpenTelemetryInstrument(tracer_provider=traces.provider, **options)
    settings.DELAYED_QUEUE = {"INSTRUMENTS": [instrument], "RETRY_POLICY": RetryPolicy.never()}


def worked(**functions: Callable[[Envelope], Any]) -> None:
    options = WorkerOptions(burst=True, poll_interval=timedelta(milliseconds=50))
    Worker(options, registry_of(**functions)).run()


def ids(span: ReadableSpan) -> tuple[int, int]:
    found = span.get_span_context()
    assert found is not None
    return found.trace_id, found.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def linked(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(each.context.trace_id, each.context.span_id) for each in span.links]


def pass_by(envelope: Envelope) -> None: ...


@pytest.mark.django_db(transaction=True)
class TestThroughAWorker:
    def test_one_trace_from_the_caller_to_what_the_handler_does(self, traces: Traces) -> None:
        def handle(envelope: Envelope) -> None:
            with traces.tracer.start_as_current_span("charge"):
                pass

        with traces.tracer.start_as_current_span("request"):
            DelayedQueue("orders").offer_or_update("A-17", {"card": SECRET})
        worked(orders=handle)
        path = [traces.one(name) for name in ("request", "offer orders", "handle orders", "charge")]
        assert parent_of(path[0]) is None
        for parent, child in pairwise(path):
            assert parent_of(child) == ids(parent)
        assert [each.kind for each in path[1:3]] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
        # The conventions require the link in any case.
        assert linked(path[2]) == [ids(path[1])]

    def test_spans_have_the_conventions_attributes_and_no_payload(self, traces: Traces) -> None:
        DelayedQueue("orders").offer_or_update("A-17", {"card": SECRET})
        worked(orders=pass_by)
        create, process = traces.one("offer orders"), traces.one("handle orders")
        assert create.attributes == {
            "messaging.system": "delayed_queue",
            "messaging.destination.name": "orders",
            "messaging.operation.type": "create",
            "messaging.operation.name": "offer",
        }
        attributes = dict(process.attributes or {})
        assert attributes.pop("delayed_queue.lease")
        assert attributes == {
            "messaging.system": "delayed_queue",
            "messaging.destination.name": "orders",
            "messaging.operation.type": "process",
            "messaging.operation.name": "handle",
            "messaging.message.id": "A-17",
            "delayed_queue.attempt": 1,
            "delayed_queue.delivery_type": "first",
            "delayed_queue.outcome": "done",
        }
        assert process.status.status_code is StatusCode.UNSET
        assert not any(SECRET in each.to_json() for each in (create, process))

    def test_each_attempt_is_a_child_of_the_offer(self, settings: LazySettings) -> None:
        traces = Traces()
        use(settings, traces)
        settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"RETRY_POLICY": RetryPolicy.ladder("0s")}
        DelayedQueue("orders").offer_or_update("k", 1)

        def fail_once(envelope: Envelope) -> None:
            if envelope.attempt == 1:
                raise ValueError("first")

        worked(orders=fail_once)
        first, second = traces.named("handle orders")
        offer = ids(traces.one("offer orders"))
        assert parent_of(first) == parent_of(second) == offer
        attempts = [(each.attributes or {})["delayed_queue.attempt"] for each in (first, second)]
        assert attempts == [1, 2]

    def test_async_handlers_are_traced_across_their_awaits(self, traces: Traces) -> None:
        async def handle(envelope: Envelope) -> None:
            await asyncio.sleep(0)
            with traces.tracer.start_as_current_span(f"inside {envelope.key}"):
                await asyncio.sleep(0)

        queue = DelayedQueue("orders")
        queue.offer_batch(ScheduledMessage(f"k{n}", n) for n in range(10))
        worked(orders=handle)
        assert len(traces.named("handle orders")) == 10
        for process in traces.named("handle orders"):
            key = (process.attributes or {})["messaging.message.id"]
            assert isinstance(key, str)
            assert parent_of(traces.one(f"inside {key}")) == ids(process)

    def test_what_a_handler_offers_continues_the_trace(self, traces: Traces) -> None:
        def forward(envelope: Envelope) -> None:
            DelayedQueue("bills").offer_or_update("B", 1)

        DelayedQueue("orders").offer_or_update("A", 1)
        worked(orders=forward)
        worked(bills=pass_by)
        assert parent_of(traces.one("offer bills")) == ids(traces.one("handle orders"))
        assert parent_of(traces.one("handle bills")) == ids(traces.one("offer bills"))


@pytest.mark.django_db(transaction=True)
class TestErrors:
    def handled(self, traces: Traces, raised: BaseException) -> ReadableSpan:
        def handle(envelope: Envelope) -> None:
            raise raised

        DelayedQueue("orders").offer_or_update("k", 1)
        worked(orders=handle)
        return traces.one("handle orders")

    def test_exceptions_are_recorded(self, traces: Traces) -> None:
        span = self.handled(traces, ValueError("no such order"))
        assert span.status.status_code is StatusCode.ERROR
        [event] = span.events
        assert event.name == "exception"
        assert (event.attributes or {})["exception.message"] == "no such order"
        attributes = span.attributes or {}
        assert attributes["error.type"] == "ValueError"
        assert attributes["delayed_queue.outcome"] == "failed"

    def test_their_texts_can_be_left_out(self, settings: LazySettings) -> None:
        traces = Traces()
        use(settings, traces, record_exceptions=False)
        span = self.handled(traces, ValueError(SECRET))
        assert span.status.status_code is StatusCode.ERROR
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert SECRET not in span.to_json()

    @pytest.mark.parametrize(
        ("raised", "outcome"),
        [(Snooze(timedelta(hours=1)), "snoozed"), (Reject("no such order"), "rejected")],
    )
    def test_answers_are_no_errors(self, traces, raised, outcome):
        span = self.handled(traces, raised)
        assert (span.status.status_code, len(span.events)) == (StatusCode.UNSET, 0)
        attributes = span.attributes or {}
        assert attributes["delayed_queue.outcome"] == outcome
        assert "error.type" not in attributes


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("make", [DelayedQueue, InMemoryQueue])
class TestOffers:
    def test_a_traced_offer_that_is_repeated_is_ignored(self, traces, make):
        queue, at = make("orders"), from_now(hours=1)
        assert queue.offer_or_update("k", 1, at) is OfferOutcome.CREATED
        stored = queue.read("k")
        assert stored is not None
        assert queue.offer_or_update("k", 1, at) is OfferOutcome.IGNORED
        assert queue.offer_if_not_exists("k", 2, at) is OfferOutcome.IGNORED
        assert queue.offer_batch([ScheduledMessage("k", 1, at)]) == [OfferOutcome.IGNORED]
        assert len(traces.named("offer orders")) == 4
        assert queue.read("k") == stored

    def test_headers_and_a_trace_of_the_caller_are_kept(self, traces, make):
        queue = make("orders")
        queue.offer_or_update("own", 1, headers={"own": 1})
        queue.offer_or_update("traced", 1, headers={"traceparent": PARENT})
        own, traced = queue.read("own"), queue.read("traced")
        assert own is not None
        assert traced is not None
        assert own.headers.keys() == {"own", "traceparent"}
        assert traced.headers == {"traceparent": PARENT}

    def test_baggage_is_not_stored(self, traces: Traces, make: type[DelayedQueue]) -> None:
        queue = make("orders")
        token = context.attach(baggage.set_baggage("card", SECRET))
        try:
            queue.offer_or_update("k", 1)
        finally:
            context.detach(token)
        stored = queue.read("k")
        assert stored is not None
        assert stored.headers.keys() == {"traceparent"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("header", ["nonsense", 7, None, ["00"], "00-0-0-00"])
def test_a_foreign_header_does_no_harm(traces: Traces, header: Any) -> None:
    DelayedQueue("orders").offer_or_update("k", 1, headers={"traceparent": header})
    worked(orders=pass_by)
    assert traces.one("handle orders").parent is None
