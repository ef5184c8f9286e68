"""The REST interface (N1): 202 and a row, or 400 with field paths and none."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from delayed_queue.notifications import managing, services
from delayed_queue.notifications.models import Delivery, Notification, Status, Suppression
from delayed_queue.notifications.settling import Call
from tests.notifications.configured import configure
from tests.notifications.factories import begin, enqueue, fail, lease, started
from tests.notifications.requests import email, sms

pytestmark = pytest.mark.django_db

URL = "/v1/notifications"
JSON = "application/json"
NDJSON = "application/x-ndjson"


def post(client: Client, body: Any, url: str = URL, content_type: str = JSON) -> Any:
    data = body if isinstance(body, bytes | str) else json.dumps(body)
    return client.post(url, data, content_type=content_type)


def test_n1_a_valid_request_is_accepted(caller):
    answer = post(caller, email())
    assert answer.status_code == 202
    row = Notification.objects.get()
    assert answer.json() == {"id": str(row.id), "status": "ENQUEUED", "duplicate": False}
    assert answer["Location"] == f"{URL}/{row.id}"
    assert row.tenant == "tests"


def test_n1_the_location_shows_it_without_personal_data(caller):
    location = post(caller, email(sendAt="2026-01-01T00:00:00Z"))["Location"]
    answer = caller.get(location)
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["status"], shown["channel"], shown["deliveries"]) == ("ENQUEUED", "email", [])
    assert {"createdAt", "sendAt", "expiresAt", "providerId"} <= shown.keys()
    assert "ada@" not in answer.content.decode()
    assert "Hello" not in answer.content.decode()


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (email(to="ada"), "to"),
        (email(channel="fax"), "channel"),
        ({}, "to"),
        ([email()], ""),
        (None, ""),
        ("text", ""),
    ],
)
def test_n1_a_bad_field_is_400_with_its_path_and_no_row(caller, body, path):
    answer = post(caller, json.dumps(body))
    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_request"
    assert path in [each["path"] for each in problem["errors"]]
    assert not Notification.objects.exists()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"channel": "email", "to": "a@b.org", "body": NaN}',
        b'{"channel": "email", "body": "\\u0000"}',
        b'{"channel": "email", "body": "\\ud800"}',
        b'{"channel": "email", "channel": "sms"}',
        b'{"channel": "\xff"}',
        b"[" * 100_000,
    ],
)
def test_n1_what_is_no_strict_json_is_400(caller, body):
    answer = post(caller, body)
    assert answer.status_code == 400, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    assert not Notification.objects.exists()


def test_n20_a_request_with_attachments_of_a_mebibyte_is_accepted(caller):
    def attached(size: int) -> dict[str, Any]:
        content = base64.b64encode(bytes(size)).decode()
        return email(attachments=[{"name": "a", "content": content}])

    assert post(caller, attached(2**20)).status_code == 202
    answer = post(caller, attached(2**20 + 1))
    assert (answer.status_code, answer.json()["errors"][0]["path"]) == (400, "attachments")


def test_n1_too_large_is_413_and_another_type_415(caller):
    assert post(caller, email(body="x" * 1_700_000)).status_code == 413
    assert post(caller, "<a/>", content_type="text/xml").status_code == 415
    assert not Notification.objects.exists()


def test_n1_closed_without_a_token_or_its_verb(make_client):
    assert post(Client(), email()).status_code == 401
    reader = make_client(name="reader", verbs=["read"])
    assert post(reader, email()).status_code == 403
    stranger = make_client(name="stranger", topics=["orders"])
    assert post(stranger, email()).status_code == 403
    assert not Notification.objects.exists()


def test_n1_bulk_says_of_each_item_what_became_of_it(caller):
    answer = post(caller, [email(), email(to="x"), sms()], f"{URL}/bulk")
    assert answer.status_code == 202
    told = answer.json()
    assert (told["accepted"], told["refused"]) == (2, 1)
    assert [each["index"] for each in told["items"]] == [0, 1, 2]
    assert told["items"][1]["errors"][0]["path"] == "to"
    assert "id" not in told["items"][1]
    ids = [str(each) for each in Notification.objects.order_by("id").values_list("id", flat=True)]
    assert [told["items"][0]["id"], told["items"][2]["id"]] == ids


def test_n1_bulk_takes_lines_and_names_those_that_are_no_json(caller):
    lines = "\n".join([json.dumps(email()), "{broken", "", json.dumps(sms()), "7"])
    told = post(caller, lines, f"{URL}/bulk", NDJSON).json()
    assert [("id" in each) for each in told["items"]] == [True, False, True, False]
    assert told["items"][1]["errors"][0]["message"].startswith("is malformed JSON")


@pytest.mark.parametrize("body", ["{}", "7", "null", "[", '[{"channel":"email"},]'])
def test_n1_bulk_that_is_no_array_is_400(caller, body):
    assert post(caller, body, f"{URL}/bulk").status_code == 400


def test_n1_bulk_has_limits(caller, settings):
    configure(settings, {"BULK_ITEMS": 2})
    assert post(caller, [email()] * 3, f"{URL}/bulk").status_code == 413
    assert post(caller, " " * (8 * 1024**2 + 1), f"{URL}/bulk").status_code == 413
    assert not Notification.objects.exists()


def test_n1_listed_by_state_in_pages_newest_first(make_client):
    shop = make_client(name="shop", verbs=["read"])
    ids = [str(enqueue().id) for _ in range(5)]
    managing.cancel(uuid.UUID(ids.pop(2)))
    enqueue(tenant="another")
    pages = []
    cursor: dict[str, str] = {}
    for _ in range(2):
        pages.append(shop.get(URL, {"status": "ENQUEUED", "limit": 2} | cursor).json())
        cursor = {"cursor": pages[-1]["next"]}
    assert [[each["id"] for each in page["items"]] for page in pages] == [
        [ids[3], ids[2]], [ids[1], ids[0]],
    ]  # fmt: skip
    assert pages[-1]["next"] is None


def test_n1_several_states_and_all_of_them(caller):
    first, second = enqueue(tenant="tests"), enqueue(tenant="tests")
    managing.cancel(first.id)
    both = caller.get(f"{URL}?status=ENQUEUED&status=CANCELLED").json()["items"]
    assert [each["id"] for each in both] == [str(second.id), str(first.id)]
    assert len(caller.get(URL).json()["items"]) == 2
    assert caller.get(URL, {"status": "LOST"}).status_code == 400
    assert caller.get(URL, {"limit": 0}).status_code == 400
    assert caller.get(URL, {"cursor": "x"}).status_code == 400


def test_n1_cancel_until_it_is_being_sent(caller):
    waiting, sending = enqueue(tenant="tests"), enqueue(tenant="tests", channel="sms")
    begin(lease(sending))
    assert caller.delete(f"{URL}/{waiting.id}").status_code == 204
    assert caller.delete(f"{URL}/{waiting.id}").status_code == 204
    assert not services.queue_of("normal", "email").contains_message(str(waiting.id))
    answer = caller.delete(f"{URL}/{sending.id}")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_cancellable")
    assert caller.delete(f"{URL}/{uuid.uuid4()}").status_code == 404
    assert caller.delete(f"{URL}/7").status_code == 404


def test_n1_retry_what_failed(caller):
    failed, envelope, begun = started(tenant="tests")
    call = Call("smtp", Delivery.Outcome.REFUSED, "", "550", "no such user ada@example.org",
                timedelta(seconds=1))  # fmt: skip
    fail(begun, [call], "refused")
    envelope.acknowledge()
    shown = caller.get(f"{URL}/{failed.id}")
    assert shown.json()["deliveries"][0]["errorClass"] == "550"
    assert "ada@" not in shown.content.decode()

    answer = post(caller, b"", f"{URL}/{failed.id}/retry")
    assert (answer.status_code, answer.json()["status"]) == (202, "ENQUEUED")
    assert post(caller, b"", f"{URL}/{failed.id}/retry").status_code == 409


def test_n1_a_tenant_meets_its_own_only_a_manager_all(make_client):
    theirs = enqueue(tenant="bank")
    shop = make_client(name="shop/2031", verbs=["add", "read", "delete"])
    assert shop.get(f"{URL}/{theirs.id}").status_code == 404
    assert shop.delete(f"{URL}/{theirs.id}").status_code == 404
    assert shop.get(URL).json()["items"] == []
    post(shop, email())
    assert Notification.objects.filter(tenant="shop").count() == 1
    manager = make_client(name="operators")
    assert manager.get(f"{URL}/{theirs.id}").status_code == 200
    assert len(manager.get(URL).json()["items"]) == 2


def test_n9_suppressing_and_lifting_it(caller, make_client):
    who = {"channel": "email", "to": "Ada@example.org", "category": "offers"}
    assert post(caller, who, "/v1/suppressions").status_code == 204
    assert post(caller, who | {"reason": "complaint"}, "/v1/suppressions").status_code == 204
    assert Suppression.objects.get().reason == "complaint"
    assert post(caller, email(category="offers")).json()["status"] == Status.CANCELLED
    assert post(caller, who, "/v1/suppressions/lift").status_code == 204
    assert post(caller, email(category="offers")).json()["status"] == Status.ENQUEUED
    wrong: list[dict[str, Any]] = [{"to": 7}, {"to": "x"}, {"category": "A B"}, {"x": 1}]
    for each in wrong:
        assert post(caller, who | each, "/v1/suppressions").status_code == 400
    assert post(caller, {}, "/v1/suppressions").status_code == 400
    assert post(caller, [], "/v1/suppressions").status_code == 400
    tenant = make_client(name="shop", verbs=["add", "read"])
    assert post(tenant, who, "/v1/suppressions").status_code == 403
