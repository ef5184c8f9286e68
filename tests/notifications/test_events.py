"""Events of providers (N15): read by Anymail, in the form in which each provider posts them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.test import Client

from delayed_queue.notifications.apps import check_providers
from delayed_queue.notifications.events import Event, Kind, apply, is_soft
from delayed_queue.notifications.models import Notification, SoftBounce, Status, Suppression
from delayed_queue.notifications.recipients import recipient_hash
from delayed_queue.notifications.sweeping import prune
from tests.notifications.configured import configure
from tests.notifications.factories import enqueue

pytestmark = pytest.mark.django_db

NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
VIEWS = "anymail.webhooks"
EVENTS = {
    "mailgun": {"kind": f"{VIEWS}.mailgun.MailgunTrackingWebhookView", "webhook_signing_key": "k"},
    "postmark": {"kind": f"{VIEWS}.postmark.PostmarkTrackingWebhookView", "webhook_secret": "a:b"},
    "brevo": {"kind": f"{VIEWS}.brevo.BrevoTrackingWebhookView", "webhook_secret": "a:b"},
    "own": {"kind": f"{__name__}.Own"},
}
BASIC = {"authorization": f"Basic {base64.b64encode(b'a:b').decode()}"}


class Own:
    """A source of the user's."""

    def read(self, request: HttpRequest) -> Iterable[Event]:
        if request.headers.get("x-key") != "k":
            raise PermissionDenied
        yield from (Event(Kind(kind), NOW, id_) for kind, id_ in json.loads(request.body))


@pytest.fixture(autouse=True)
def events(settings) -> None:
    configure(settings, {"EVENTS": EVENTS})


def sent(provider_id: str = "", **values: Any) -> Notification:
    made = enqueue(recipient_hash=recipient_hash("email", "ada@example.org"), **values)
    ended = {"status": Status.SUCCESSFULLY_PROCESSED, "ended_at": NOW, "provider_id": provider_id}
    Notification.objects.filter(pk=made.pk).update(**ended)
    return made


def mailgun(kind: str, id_: str, at: datetime = NOW, key: str = "k", **more: Any) -> dict[str, Any]:
    stamp, token = str(int(at.timestamp())), uuid.uuid4().hex
    signature = hmac.new(key.encode(), f"{stamp}{token}".encode(), hashlib.sha256).hexdigest()
    data = {
        "event": kind, "timestamp": at.timestamp(), "recipient": "ada@example.org",
        "message": {"headers": {"message-id": id_}}, **more,
    }  # fmt: skip
    return {
        "signature": {"timestamp": stamp, "token": token, "signature": signature},
        "event-data": data,
    }


def postmark(kind: str, id_: str, at: datetime = NOW, **more: Any) -> dict[str, Any]:
    return {"RecordType": kind, "MessageID": id_, "BouncedAt": at.isoformat(), **more}


def brevo(kind: str, id_: str, at: datetime = NOW) -> dict[str, Any]:
    stamp = int(at.timestamp() * 1000)
    return {"event": kind, "ts_epoch": stamp, "message-id": id_, "email": "ada@example.org"}


def post(provider: str, body: Any, **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    client = Client(enforce_csrf_checks=True)
    url, kind = f"/v1/events/{provider}", "application/json"
    return client.post(url, data, content_type=kind, headers=headers)


def state_of(notification: Notification) -> tuple[str, list[str]]:
    notification.refresh_from_db()
    assert notification.status == Status.SUCCESSFULLY_PROCESSED
    reasons = Suppression.objects.filter(
        recipient_hash=recipient_hash("email", "ada@example.org"), category=""
    ).values_list("reason", flat=True)
    return notification.delivery, list(reasons)


GONE: dict[str, Any] = {"severity": "permanent", "delivery-status": {"code": 605}}
SOFT: dict[str, Any] = {"severity": "temporary"}
ADA: dict[str, Any] = {"Email": "ada@example.org"}
State = tuple[str, list[str]]
DELIVERED: State = ("delivered", [])
BOUNCED: State = ("bounced", ["bounce"])
COMPLAINED: State = ("complained", ["complaint"])
UNKNOWN: State = ("unknown", [])


@pytest.mark.parametrize(
    ("provider", "made", "state"),
    [
        ("mailgun", lambda id_: mailgun("delivered", id_), DELIVERED),
        ("mailgun", lambda id_: mailgun("failed", id_, **GONE), BOUNCED),
        ("mailgun", lambda id_: mailgun("complained", id_), COMPLAINED),
        ("mailgun", lambda id_: mailgun("failed", id_, **SOFT), UNKNOWN),
        ("mailgun", lambda id_: mailgun("opened", id_), UNKNOWN),
        ("postmark", lambda id_: postmark("Delivery", id_), DELIVERED),
        ("postmark", lambda id_: postmark("Bounce", id_, Type="HardBounce", **ADA), BOUNCED),
        ("postmark", lambda id_: postmark("SpamComplaint", id_, **ADA), COMPLAINED),
        ("brevo", lambda id_: brevo("delivered", id_), DELIVERED),
        ("brevo", lambda id_: brevo("hard_bounce", id_), BOUNCED),
        ("brevo", lambda id_: brevo("spam", id_), COMPLAINED),
        ("brevo", lambda id_: brevo("deferred", id_), UNKNOWN),
        ("brevo", lambda id_: brevo("soft_bounce", id_), UNKNOWN),
        ("postmark", lambda id_: postmark("Bounce", id_, Type="SoftBounce", **ADA), UNKNOWN),
    ],
)  # fmt: skip
@pytest.mark.parametrize("id_", ["{}@example.org", "201812.1.7@mail.example"])
def test_n15_an_event_of_a_provider_changes_delivery_and_suppresses(provider, made, state, id_):
    # Anymail encloses the ids of Mailgun, as their backend returned them.
    stored = f"<{id_}>" if provider == "mailgun" else id_
    notification = sent(stored.format("ours") if "{}" in id_ else stored)
    body = made(id_.format(notification.pk))
    for _ in range(2):
        answer = post(provider, body, **BASIC)
        assert (answer.status_code, answer.json()["unknown"]) == (200, 0)
    assert state_of(notification) == state


@pytest.mark.parametrize(
    ("raw", "is_expected"),
    [
        ({"event": "soft_bounce"}, True), ({"RecordType": "Bounce", "Type": "SoftBounce"}, True),
        ({"data": {"type": "soft_bounced"}}, True), ({"event": "hard_bounce"}, False),
        ({"eventType": "Bounce", "bounce": {"bounceType": "Transient"}}, True),
        ({"eventType": "Bounce", "bounce": {"bounceType": "Permanent"}}, False),
        ({"msys": {"message_event": {"type": "bounce", "bounce_class": "22"}}}, True),
        ({"msys": {"message_event": {"type": "bounce", "bounce_class": "10"}}}, False),
        ("soft_bounce", False), (None, False),
    ],
)  # fmt: skip
def test_n15_a_soft_bounce_is_known_by_the_event_of_the_provider(raw: Any, is_expected: bool):
    assert is_soft(raw) == is_expected


def test_n15_late_and_repeated_events_change_nothing():
    notification = sent()
    bounce = mailgun("failed", f"{notification.pk}@example.org", **GONE)
    assert post("mailgun", bounce).json() == {"applied": 1, "unchanged": 0, "unknown": 0}
    Suppression.objects.all().delete()
    assert post("mailgun", bounce).json() == {"applied": 0, "unchanged": 1, "unknown": 0}
    late = mailgun("delivered", f"{notification.pk}@example.org", NOW - timedelta(minutes=1))
    assert post("mailgun", late).json()["unchanged"] == 1
    assert state_of(notification) == ("bounced", [])


def test_n15_five_soft_bounces_in_seven_days_suppress_the_address():
    def soften(*days: float) -> list[str]:
        for each in days:
            notification = sent()
            at = NOW - timedelta(days=each)
            apply([Event(Kind.DEFERRED, at, f"<{notification.pk}@example.org>")] * 2)
        return state_of(notification)[1]

    assert soften(30, 29, 20, 12, 6.5, 5, 4) == []
    assert soften(3) == []
    assert soften(2) == ["bounce"]
    assert SoftBounce.objects.count() == 9
    prune(timedelta(days=90))
    assert SoftBounce.objects.count() == 5


def test_n15_a_refusal_for_its_content_suppresses_no_address():
    notification = sent()
    apply([Event(Kind.BOUNCED, NOW, f"<{notification.pk}@example.org>", is_hard=False)])
    assert state_of(notification) == ("bounced", [])


def test_n15_unknown_notifications_are_counted():
    body = [["bounced", f"{uuid.uuid4()}@example.org"], ["delivered", "x"], ["delivered", ""]]
    sent("")
    answer = post("own", body, **{"x-key": "k"})
    assert answer.json() == {"applied": 0, "unchanged": 0, "unknown": 3}
    assert not Suppression.objects.exists()


@pytest.mark.parametrize(
    ("provider", "body", "headers", "status"),
    [
        ("mailgun", mailgun("delivered", "x", key="wrong"), {}, 403),
        ("mailgun", {"event-data": {}}, {}, 403),
        ("mailgun", b"{", {}, 403), ("mailgun", b"", {}, 403), ("mailgun", b"[]", {}, 400),
        ("postmark", postmark("Bounce", "x"), {}, 403),
        ("postmark", b"\xff", BASIC, 400), ("brevo", {"items": []}, BASIC, 400),
        ("brevo", [1], BASIC, 400),
        ("own", b"[]", {}, 403), ("own", b"[[1]]", {"x-key": "k"}, 400),
        ("nobody", {}, {}, 404),
    ],
)  # fmt: skip
def test_n15_n22_what_is_not_signed_or_not_readable_is_refused(provider, body, headers, status):
    sent("x")
    assert post(provider, body, **headers).status_code == status
    assert Notification.objects.get().delivery == "unknown"
    assert not Suppression.objects.exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": f"{VIEWS}.postmark.PostmarkTrackingWebhookView"},
        {"kind": f"{VIEWS}.mailgun.MailgunTrackingWebhookView"},
        {"kind": f"{VIEWS}.mailgun.MailgunTrackingWebhookView", "webhook_key": "k"},
        {"kind": "nope.Nope"}, {"kind": f"{__name__}.Own", "key": "k"},
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::anymail.exceptions.AnymailInsecureWebhookWarning")
def test_n15_a_source_without_a_signature_is_an_error(settings, entry: dict[str, Any]):
    configure(settings, {"EVENTS": {"mail": entry}})
    (found,) = check_providers()
    assert found.id == "delayed_queue.E008"
    assert "EVENTS['mail']" in found.msg


@pytest.mark.parametrize(("complaints", "is_alarm"), [(0, False), (3, False), (4, True)])
def test_n21_a_page_shows_the_complaints_of_a_provider(admin_client, complaints, is_alarm):
    first = sent(provider="mail/eu")
    Notification.objects.filter(pk=first.pk).update(delivery="bounced", delivery_at=NOW)
    kinds = ["complained"] * complaints + ["delivered"] * (1001 - complaints)
    rows = [
        Notification(
            tenant="shop", channel="email", recipient="a@b.example", recipient_hash=b"", body="",
            send_at=NOW, status=Status.SUCCESSFULLY_PROCESSED, ended_at=NOW, provider="mail/eu",
            delivery=each, delivery_at=NOW - timedelta(days=6),
        )
        for each in kinds
    ]  # fmt: skip
    Notification.objects.bulk_create(rows)
    Notification.objects.filter(pk=rows[-1].pk).update(delivery_at=NOW - timedelta(days=8))
    for name, outcome, days in (
        [("mail/eu", "sent", 6)] * 7 + [("mail/eu", "sent", 8), ("mail/eu", "failed", 1)]
        + [("other", "sent", 1)]
    ):  # fmt: skip
        call = first.deliveries.create(attempt=1, provider=name, outcome=outcome)
        first.deliveries.filter(pk=call.pk).update(at=NOW - timedelta(days=days))
    url = "/admin/delayed_queue_notifications/notification/dashboard/mail/eu/"
    html = admin_client.get(url).content.decode()
    assert f"<b>{1000 - complaints:,}</b>" in html
    assert re.search(r"<b>7</b>\s*<span[^>]*>Sent</span>", html)
    assert f"<b>{complaints / 1000:.2%}</b>" in html
    assert ("dq-alarm" in html) == is_alarm
    assert Client().get(url).status_code == 302
