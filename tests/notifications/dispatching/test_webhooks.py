"""Webhooks, and callbacks on outcomes: signed, guarded, with stable ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import Settings
from standardwebhooks import Webhook

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications import managing, services
from delayed_queue.notifications.channels import signing_secrets
from delayed_queue.notifications.handlers import LOST, sweep, tell
from delayed_queue.notifications.models import Delivery, Notification, Status
from delayed_queue.notifications.settling import CALLBACK_QUEUE
from example_project import settings as project
from tests.http.callbacks.servers import Receiver, answering
from tests.notifications.dispatchers import SENT, dispatch_all
from tests.notifications.factories import enqueue
from tests.notifications.fakes import FakeHook
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hook(settings: Settings, dispatch: dict[str, Any]) -> Iterator[FakeHook]:
    with FakeHook() as server:
        dispatch["PROVIDERS"]["webhook"] = [{"kind": "webhook", "name": "hooks"}]
        settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
            "CALLBACKS": {"ALLOWED_NETWORKS": ["127.0.0.0/8"], "ALLOWED_PORTS": [server.port]}
        }
        yield server


def status_of(notification: Notification) -> str:
    notification.refresh_from_db()
    return notification.status


def enqueue_webhook(url: str) -> Notification:
    return enqueue(channel="webhook", recipient=url, body='{"parcel": 7}')


@pytest.mark.parametrize(
    ("behaviour", "end", "calls"),
    [
        ("", (SENT, ""), ["sent"]),
        ("503,1", (SENT, ""), ["failed", "sent"]),
        ("500,1", (SENT, ""), ["ambiguous", "sent"]),
        ("drop-after,1", (SENT, ""), ["ambiguous", "sent"]),
        ("410", (Status.FAILED, "refused: 410"), ["refused"]),
    ],
)
def test_n8_what_a_webhook_answers_decides(hook, behaviour, end, calls):
    notification = enqueue_webhook(hook.url(behaviour))
    dispatch_all(1)
    notification.refresh_from_db()
    assert (notification.status, notification.outcome) == end
    recorded = notification.deliveries.order_by("id").values_list("outcome", flat=True)
    assert list(recorded) == calls
    for headers, body in hook.requests:
        lowered = {name.lower(): value for name, value in headers.items()}
        assert lowered["webhook-id"] == str(notification.id)
        assert Webhook(signing_secrets()[0]).verify(body, lowered) == {"parcel": 7}


def test_n8_an_address_that_the_guard_refuses_is_refused_for_good(settings, hook):
    settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {"CALLBACKS": {}}
    notification = enqueue_webhook(hook.url())
    assert dispatch_all(1) == {Status.FAILED: 1}
    notification.refresh_from_db()
    assert notification.outcome == "refused: blocked"
    assert hook.seen == {}


def test_n8_a_host_that_is_down_is_left_alone_and_its_webhooks_fail_in_time(hook, settings):
    settings.DELAYED_QUEUE["CALLBACKS"]["BREAKER_FAILURES"] = 2
    for _ in range(5):
        enqueue_webhook(hook.url("503"))
    assert dispatch_all(5) == {Status.FAILED: 5}
    assert sum(hook.seen.values()) < 20
    assert Delivery.objects.filter(error_class="host-left-alone").exists()


def tell_all(count: int) -> None:
    """Deliver callbacks until ``count`` messages are gone."""
    worker = worker_with(handler_of(CALLBACK_QUEUE, tell))
    with running(worker):
        wait_until(lambda: worker.counts.done + worker.counts.dead == count)


def test_n1_the_caller_is_told_how_it_ended(hook: FakeHook):
    sent = enqueue(callback_url=hook.url())
    refused = enqueue(recipient="550+ada@example.org", callback_url=hook.url())
    enqueue()
    dispatch_all(3)
    tell_all(2)

    told = {
        (body["id"], body["status"]) for body in (json.loads(each) for _, each in hook.requests)
    }
    assert told == {(str(sent.id), str(SENT)), (str(refused.id), "FAILED")}


def test_n1_a_callback_that_is_refused_for_good_is_kept_as_a_dead_letter(hook: FakeHook):
    enqueue(callback_url=hook.url("410"))
    dispatch_all(1)
    tell_all(1)
    assert DeadLetter.objects.get().reason == "the callback was refused: 410"


def test_n3_the_sweep_expires_what_no_dispatcher_does():
    late = enqueue(channel="sms", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    queue = DelayedQueue("sweeps")
    queue.offer_or_update("tick", None)
    tick = queue.try_poll()
    assert tick is not None
    sweep(tick)
    assert status_of(late) == Status.EXPIRED


def test_n3_the_other_sweep_ends_what_has_no_message():
    lost = enqueue()
    services.queue_of("normal", "email").drop_message(str(lost.pk))
    (entry,) = [each for each in project.DELAYED_QUEUE["CRON"] if each["key_prefix"] == LOST]
    queue = DelayedQueue(entry["queue"])
    queue.offer_or_update(f"{LOST}/hash/1", None)
    tick = queue.try_poll()
    assert tick is not None
    sweep(tick)
    assert status_of(lost) == Status.FAILED


def test_j16_a_webhook_and_a_callback_are_called_as_they_were_given(settings, dispatch):
    with Receiver() as receiver:
        dispatch["PROVIDERS"]["webhook"] = [{"kind": "webhook", "name": "hooks"}]
        dispatch["PROVIDERS"]["sms"] = [
            {"kind": "http", "name": "texts", "url": f"{receiver.url}?key=a%2Fb%3d"}
        ]
        settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
            "CALLBACKS": {"ALLOWED_NETWORKS": ["127.0.0.0/8"], "ALLOWED_PORTS": [receiver.port]}
        }
        enqueue_webhook(f"{receiver.url}/a%2Fb?sig=%3Ac")
        enqueue(channel="sms", callback_url=f"{receiver.url}?sig=x%2by")
        dispatch_all(2)
        tell_all(1)
        called = sorted(each.path for each in receiver.requests)
        assert called == ["/hook/a%2Fb?sig=%3Ac", "/hook?key=a%2Fb%3d", "/hook?sig=x%2by"]


def test_j17_a_receiver_cannot_shorten_the_wait_of_a_callback(settings: Settings) -> None:
    headers = {"Retry-After": "0", "Date": "Thu, 01 Jan 2026 00:00:00 GMT"}
    with Receiver(answering(503, headers=headers)) as receiver:
        settings.DELAYED_QUEUE = settings.DELAYED_QUEUE | {
            "CALLBACKS": {"ALLOWED_NETWORKS": ["127.0.0.0/8"], "ALLOWED_PORTS": [receiver.port]}
        }
        managing.cancel(enqueue(callback_url=receiver.url).id)
        worker = worker_with(handler_of(CALLBACK_QUEUE, tell), burst=True)
        worker.run()
    assert worker.counts.failed == 1
    stored = Message.objects.get(kind__startswith=CALLBACK_QUEUE)
    assert stored.scheduled_at > datetime.now(UTC) + timedelta(seconds=2)
