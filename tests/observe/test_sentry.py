"""Failed handlers in Sentry, by its real SDK and a recording transport (O6)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sentry_sdk
from django.conf import LazySettings
from sentry_sdk.envelope import Envelope as SentryEnvelope
from sentry_sdk.transport import Transport

from delayed_queue import DelayedQueue, Envelope, Reject, Retry, Snooze
from delayed_queue.handlers import HandlerFunction
from delayed_queue.observe.sentry import SentryInstrument
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.instruments import registry_of

pytestmark = pytest.mark.django_db(transaction=True)


class Recording(Transport):
    """Keeps the events that it should send."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.is_flushed = False

    def flush(self, timeout: float, callback: Any = None) -> None:
        self.is_flushed = bool(self.events)

    def capture_envelope(self, envelope: SentryEnvelope) -> None:
        event: Any = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def sent(settings: LazySettings) -> Iterator[list[dict[str, Any]]]:
    settings.DELAYED_QUEUE = {"INSTRUMENTS": [SentryInstrument]}
    transport = Recording()
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", transport=transport, default_integrations=False)
    yield transport.events
    # Without its integrations: that of aiohttp would write headers into requests of other tests.
    sentry_sdk.init(default_integrations=False)


def handle(function: HandlerFunction, *keys: str) -> None:
    queue = DelayedQueue("orders")
    for key in keys:
        queue.offer_or_update(key, {"card": "4111"})
    options = WorkerOptions(("orders",), burst=True, poll_interval=timedelta(milliseconds=50))
    Worker(options, registry_of(orders=function)).run()


def crumbs_of(event: dict[str, Any]) -> list[str]:
    return [each["message"] for each in event["breadcrumbs"]["values"]]


def failing(envelope: Envelope) -> None:
    if envelope.attempt == 1:
        raise LookupError("no such order")


async def failing_later(envelope: Envelope) -> None:
    failing(envelope)


@pytest.mark.parametrize("function", [failing, failing_later])
def test_a_failure_is_sent_once_with_queue_key_and_attempt(sent, function):
    handle(function, "A-1")
    [event] = sent
    assert event["tags"] == {
        "delayed_queue.queue": "orders",
        "delayed_queue.key": "A-1",
        "delayed_queue.attempt": 1,
    }
    assert event["transaction"] == "handle orders"
    [raised] = event["exception"]["values"]
    assert (raised["type"], raised["value"]) == ("LookupError", "no such order")
    assert raised["stacktrace"]["frames"][-1]["function"] == "failing"


def test_a_worker_that_stops_waits_until_it_is_sent(sent: list[dict[str, Any]]) -> None:
    handle(failing, "A-1")
    transport = sentry_sdk.get_client().transport
    assert isinstance(transport, Recording)
    assert transport.is_flushed


def test_messages_do_not_share_what_they_note(sent: list[dict[str, Any]]) -> None:
    def noting(envelope: Envelope) -> None:
        sentry_sdk.add_breadcrumb(message=envelope.key)
        failing(envelope)

    handle(noting, "A-1", "A-2", "A-3")
    noted = {each["tags"]["delayed_queue.key"]: crumbs_of(each) for each in sent}
    assert noted == {key: [key] for key in ("A-1", "A-2", "A-3")}


@pytest.mark.parametrize(
    "answer", [Snooze(timedelta(milliseconds=1)), Retry(timedelta(milliseconds=1)), Reject("no")]
)
def test_answers_are_not_errors(sent: list[dict[str, Any]], answer: Exception) -> None:
    def answering(envelope: Envelope) -> None:
        if envelope.attempt == 1 and not seen:
            seen.append(envelope)
            raise answer

    seen: list[Envelope] = []
    handle(answering, "A-1")
    assert seen
    assert sent == []
