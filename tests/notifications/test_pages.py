"""The operators' pages (N12): their content, permissions and operations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from delayed_queue.notifications import managing, parking, services
from delayed_queue.notifications.models import (
    Delivery,
    Notification,
    ParkedRequest,
    Status,
    Suppression,
    Template,
)
from delayed_queue.notifications.parking import Incoming
from delayed_queue.notifications.recipients import recipient_hash
from delayed_queue.notifications.settling import IN_DOUBT, Call
from tests.admin.support import operator, page, told
from tests.notifications.factories import begin, enqueue, fail, lease, started
from tests.notifications.requests import template

pytestmark = pytest.mark.django_db

LIST = "/admin/delayed_queue_notifications/notification/"
DASHBOARD = f"{LIST}dashboard/"
PARKED = "/admin/delayed_queue_notifications/parkedrequest/"
SECRET = "<b>secret</b>"


def failed(**values: Any) -> Notification:
    notification, envelope, begun = started(**values)
    call = Call("smtp-1", Delivery.Outcome.REFUSED, "", "550", f"no such user {SECRET}",
                timedelta(milliseconds=120))  # fmt: skip
    fail(begun, [call], "refused for good")
    envelope.acknowledge()
    return notification


def url_of(notification: Notification) -> str:
    return f"{LIST}{notification.pk}/change/"


def test_n12_the_dashboard_tells_rates_states_and_providers():
    enqueue(priority="urgent", channel="sms")
    failed()
    html = page(operator("view_notification"), DASHBOARD)
    assert "smtp-1" in html
    assert "<b>none</b>" not in html  # the longest wait
    assert 'data-dq-live="notifications"' in html
    for text in ("ada@", "no such user", "Hello"):
        assert text not in html


def test_n12_the_dashboard_of_an_empty_service():
    html = page(operator("view_notification"), DASHBOARD)
    assert "<b>none</b>" in html
    assert "No provider was called" in html


@pytest.mark.parametrize("url", [DASHBOARD, LIST, PARKED])
def test_n12_no_page_without_its_permission(url):
    assert operator().get(url).status_code == 403
    assert Client().get(url).status_code == 302


def test_n12_recipients_and_texts_are_for_those_who_may_see_them():
    notification = failed(body=SECRET, html=SECRET, subject=SECRET, dedupe_key="reset-7")
    html = page(operator("view_notification"), url_of(notification))
    for text in ("ada@example.org", "secret", "no such user", "reset-7"):
        assert text not in html

    html = page(operator("view_notification", "view_recipient"), url_of(notification))
    assert "ada@example.org" in html
    assert "no such user &lt;b&gt;secret" in html
    assert "reset-7" in html
    assert SECRET not in html


def test_n12_no_list_shows_a_recipient():
    failed()
    enqueue()
    for query in ("", "?status=FAILED", "?q=ada@example.org", "?recipient__startswith=ada"):
        response = operator("view_notification", "view_recipient").get(LIST + query)
        assert "ada@example.org</" not in response.content.decode()


def test_n12_the_page_of_one_that_waits_tells_until_when():
    later = datetime.now(UTC) + timedelta(hours=1)
    notification = enqueue(send_at=later)
    client = operator("view_notification")
    assert "attempt 1 is due then" in page(client, url_of(notification))
    services.queue_of("normal", "email").drop_message(str(notification.pk))
    assert "it has no message" in page(client, url_of(notification))
    leased = enqueue(channel="sms")
    lease(leased)
    assert "a dispatcher holds its message" in page(client, url_of(leased))


def test_n12_a_timeline_in_order():
    notification = failed(expires_at=datetime.now(UTC) + timedelta(hours=1))
    managing.retry(notification.pk)
    html = page(operator("view_notification"), url_of(notification))
    marks = ["accepted from shop", "attempt 1, smtp-1", "120 ms", 'class="dq-now"', "too late"]
    assert [html.index(each) for each in marks] == sorted(html.index(each) for each in marks)


def test_n12_pages_by_state_and_by_id():
    first, second = enqueue(), enqueue()
    managing.cancel(first.pk)
    client = operator("view_notification")
    html = page(client, f"{LIST}?status=CANCELLED")
    assert str(first.pk) in html
    assert str(second.pk) not in html
    assert str(second.pk) in page(client, f"{LIST}?q={second.pk}")
    assert "No notification has this id" in page(client, f"{LIST}?q=ada@example.org")
    for query in ("?status=LOST", "?after=7"):
        assert client.get(LIST + query).status_code == 302
    assert client.get(f"{LIST}7/change/").status_code == 302


def test_n12_a_long_list_goes_on_where_it_ended():
    ids = [str(enqueue().pk) for _ in range(60)]
    client = operator("view_notification")
    html = page(client, f"{LIST}?status=ENQUEUED")
    assert ids[-1] in html
    assert ids[10] in html
    assert ids[9] not in html
    for query in (f"?status=ENQUEUED&after={ids[10]}.ENQUEUED", f"?after={ids[10]}"):
        html = page(client, LIST + query)
        assert ids[9] in html
        assert ids[10] + "/change" not in html


def operate(client: Client, name: str, *rows: Any, **more: str) -> Any:
    keys = [getattr(row, "pk", row) for row in rows]
    return client.post(LIST, {"action": name, "_selected_action": keys, **more})


@pytest.mark.parametrize(
    ("name", "make", "status", "past"),
    [("cancel", enqueue, Status.CANCELLED, "Cancelled"),
     ("retry", failed, Status.ENQUEUED, "Queued again")],
)  # fmt: skip
def test_n12_cancel_and_retry_from_the_page(name, make, status, past):
    notification = make()
    button = f'name="action" value="{name}"'
    blind = operator("view_notification")
    assert button not in page(blind, url_of(notification))
    assert operate(blind, name, notification).status_code == 403
    assert operate(operator(f"{name}_notification"), name, notification).status_code == 403
    client = operator("view_notification", f"{name}_notification")
    assert button in page(client, url_of(notification))
    response = operate(client, name, notification, origin="detail")
    notification.refresh_from_db()
    assert notification.status == status
    assert LogEntry.objects.get().change_message == f"{past}."
    response = operate(client, name, notification, origin="detail")
    assert told(response)[-1].startswith("Skipped 1 notification, because")
    assert button not in page(client, url_of(notification))


def test_n12_many_at_once_and_only_those_in_the_state_for_it():
    waiting, sending = enqueue(), enqueue(channel="sms")
    begin(lease(sending))
    client = operator("view_notification", "cancel_notification")
    response = operate(client, "cancel", waiting, sending)
    assert told(response) == [
        f"Cancelled 1 notification: {waiting.pk}.",
        f"Skipped 1 notification, because it does not wait: {sending.pk}.",
    ]
    assert operate(client, "cancel", "no id").status_code == 302


def doubtful(**values: Any) -> Notification:
    notification, envelope, begun = started(**values)
    call = Call("smtp-1", Delivery.Outcome.AMBIGUOUS, "", "TimeoutError")
    fail(begun, [call], IN_DOUBT)
    envelope.acknowledge()
    return notification


def test_n12_a_retry_sends_nothing_twice_unless_it_is_confirmed():
    refused, unknown = failed(), doubtful(channel="sms")
    client = operator("view_notification", "retry_notification")
    response = operate(client, "retry", refused, unknown)
    assert [each.partition(":")[0] for each in told(response)] == [
        "Queued again 1 notification",
        "Skipped 1 notification, because it has not failed, is too late, or may have been sent",
    ]
    assert "may send it twice" in operate(client, "retry_in_doubt", unknown).content.decode()
    unknown.refresh_from_db()
    assert unknown.status == Status.FAILED
    operate(client, "retry_in_doubt", unknown, confirmed="1")
    unknown.refresh_from_db()
    assert unknown.status == Status.ENQUEUED


def test_n12_what_was_parked_and_why():
    body = b'{"channel": "sms", "to": "secret-number"}'
    parking.take([Incoming(body)], tenant="shop", origin="notifications")
    parked = ParkedRequest.objects.get()
    client = operator("view_parkedrequest")
    assert "to is not a number" in page(client, PARKED)
    html = page(client, f"{PARKED}{parked.pk}/change/")
    assert "is not a number" in html
    assert "secret-number" not in html
    seeing = operator("view_parkedrequest", "view_parked_body")
    assert "secret-number" in page(seeing, f"{PARKED}{parked.pk}/change/")


def test_n12_parked_requests_have_pages():
    bodies = [b"{%d" % number for number in range(60)]
    parking.take([Incoming(each) for each in bodies], tenant="shop", origin="q")
    client = operator("view_parkedrequest")
    first = client.get(PARKED).context["cl"]
    second = client.get(PARKED + first.next_page).context["cl"]
    assert (len(first.result_list), len(second.result_list)) == (50, 10)


def test_n12_parked_requests_that_are_valid_by_now_are_accepted():
    good = b'{"channel":"email","to":"a@example.org","template":"welcome","context":{"name":"A"}}'
    parking.take([Incoming(good), Incoming(b"{")], tenant="shop", origin="notifications")
    template().save()
    selected = list(ParkedRequest.objects.values_list("pk", flat=True))
    data = {"action": "retry", "_selected_action": selected}
    looking = operator("view_parkedrequest")
    assert looking.post(PARKED, data).status_code == 403
    assert ParkedRequest.objects.count() == 2
    response = operator("view_parkedrequest", "retry_parkedrequest").post(PARKED, data)
    assert [each.partition(":")[0] for each in told(response)] == [
        "Accepted 1 request", "Skipped 1 request, because it is still invalid"
    ]  # fmt: skip
    assert LogEntry.objects.get().change_message == "Accepted."
    assert bytes(ParkedRequest.objects.get().body) == b"{"
    assert Notification.objects.get().template == "welcome"


def test_n9_templates_are_added_as_versions():
    client = operator("view_template", "add_template")
    good = {"name": "hello", "channel": "sms", "body": "Hello {{ name }}\r\n\r\nBye"}
    for _ in range(2):
        assert (
            client.post("/admin/delayed_queue_notifications/template/add/", good).status_code == 302
        )
    assert list(Template.objects.values_list("version", flat=True)) == [1, 2]
    assert Template.objects.get(version=1).body == "Hello {{ name }}\n\nBye"
    bad = client.post(
        "/admin/delayed_queue_notifications/template/add/", good | {"body": "{% include 'x' %}"}
    )
    assert "does not compile" in bad.content.decode()
    html = page(
        client,
        f"/admin/delayed_queue_notifications/template/{Template.objects.get(version=1).pk}/change/",
    )
    assert 'name="_save"' not in html


def test_n9_a_version_begins_with_the_one_before_it():
    first = template()
    first.save()
    client = operator("view_template", "add_template")
    add = "/admin/delayed_queue_notifications/template/add/"
    html = page(client, f"/admin/delayed_queue_notifications/template/{first.pk}/change/")
    assert f'href="{add}?from={first.pk}"' in html
    assert "Dear {{ name }}, welcome." in page(client, f"{add}?from={first.pk}")
    for wrong in ("x", "-1", "9" * 30, ""):
        assert "Dear" not in page(client, f"{add}?from={wrong}")
    html = page(
        operator("view_template"), f"/admin/delayed_queue_notifications/template/{first.pk}/change/"
    )
    assert "New version" not in html


def test_n9_suppressions_are_added_by_recipient_and_kept_as_hashes():
    client = operator("view_suppression", "add_suppression", "delete_suppression")
    add = "/admin/delayed_queue_notifications/suppression/add/"
    data = {"channel": "email", "recipient": "Ada@example.org", "reason": "opt-out"}
    assert client.post(add, data).status_code == 302
    kept = Suppression.objects.get()
    assert bytes(kept.recipient_hash) == recipient_hash("email", "ada@example.org")
    for wrong in ({"recipient": "x"}, {"category": "A B"}):
        assert client.post(add, data | wrong).status_code == 200
    assert client.post(add, data | {"reason": "complaint"}).status_code == 302
    assert Suppression.objects.get().reason == "complaint"
    html = page(client, "/admin/delayed_queue_notifications/suppression/")
    assert "ada@example.org" not in html.lower()
