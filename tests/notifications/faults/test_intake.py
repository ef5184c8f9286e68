"""Intake during an outage (N1): stored once and 202, or 503 and no row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import InternalError, connection
from django.test import Client

from delayed_queue.models import Message
from delayed_queue.notifications.models import DedupeClaim, Notification, ParkedRequest
from delayed_queue.notifications.parking import Incoming, take
from tests.notifications.requests import email
from tests.support.aiming import Stage
from tests.support.concurrency import calling
from tests.support.proxy import Proxy

pytestmark = pytest.mark.usefixtures("proxied")

URL = "/v1/notifications"


@pytest.fixture
def shop(proxied: None, caller: Client) -> Client:
    """A caller whose token is cached, so that the intake itself fails."""
    assert caller.get(URL).status_code == 200
    return caller


def post(client: Client, *requests: dict[str, Any]) -> Any:
    # As Django does between two requests.
    connection.close_if_unusable_or_obsolete()
    path, body = (URL, requests[0]) if len(requests) == 1 else (f"{URL}/bulk", list(requests))
    return client.post(path, json.dumps(body), content_type="application/json")


def stored() -> tuple[int, int, int]:
    connection.close_if_unusable_or_obsolete()
    models = (Notification, Message, DedupeClaim)
    found = [each.objects.count() for each in models]
    return found[0], found[1], found[2]


def test_n1_an_answer_lost_after_the_commit_is_found_out(shop, proxy: Proxy):
    proxy.swallow_answer("COMMIT")
    answer = post(shop, email(dedupeKey="order-1"))
    assert (answer.status_code, answer.json()["duplicate"]) == (202, False)
    assert stored() == (1, 1, 1)

    answer = post(shop, email(dedupeKey="order-1"))
    assert (answer.status_code, answer.json()["duplicate"]) == (202, True)
    assert stored() == (1, 1, 1)


@pytest.mark.parametrize(
    "statement",
    ["INSERT INTO delayed_queue_notification_dedupe", "INSERT INTO delayed_queue_notification",
     "INSERT INTO delayed_queue", "COMMIT"],
)  # fmt: skip
@pytest.mark.parametrize("count", [1, 20])
def test_n1_a_connection_lost_on_the_way_is_replaced(shop, proxy: Proxy, statement, count):
    aim = proxy.aim_at(statement, Stage.UNSENT)
    requests = [email(dedupeKey=str(each)) for each in range(count)]
    with calling(lambda: post(shop, *requests)) as call:
        aim.wait()
        proxy.cut()
        answer = call.answer()
    assert answer.status_code == 202
    assert stored() == (count, count, count)
    assert post(shop, *requests).status_code == 202
    assert stored() == (count, count, count)


def test_n1_a_database_that_is_away_is_503_until_it_is_back(shop, proxy: Proxy):
    proxy.refuse()
    answer = post(shop, email())
    assert (answer.status_code, "Retry-After" in answer) == (503, True)
    assert answer["Content-Type"] == "application/problem+json"
    proxy.accept()
    assert post(shop, email()).status_code == 202
    assert stored()[:2] == (1, 1)


def read_only() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")


def test_n1_a_database_that_only_reads_is_left_for_another(shop, proxy: Proxy):
    read_only()
    answer = shop.post(URL, json.dumps(email()), content_type="application/json")
    assert answer.status_code == 202
    assert proxy.errors == ["25006"]
    assert stored()[:2] == (1, 1)


def test_n2_a_message_is_not_parked_because_the_database_only_reads(proxied: None):
    read_only()
    message = Incoming(json.dumps(email()).encode())
    with pytest.raises(InternalError):
        take([message], tenant="shop", origin="broker")
    connection.close()
    assert take([message], tenant="shop", origin="broker").accepted == 1
    assert not ParkedRequest.objects.exists()
