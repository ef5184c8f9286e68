"""Database round trips of a request: the proxy counts the server's "ready" replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import transaction
from django.test import Client

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.models import Notification
from tests.notifications.requests import template
from tests.support.proxy import Proxy

pytestmark = pytest.mark.usefixtures("proxied")

URL = "/v1/notifications"
# Fields that most upstream services send.
USUAL = {
    "channel": "email", "to": "ada@example.org", "template": "welcome", "context": {"name": "Ada"},
}  # fmt: skip


@pytest.fixture
def shop(proxied: None, caller: Client) -> Client:
    """A caller with a cached token and template, and an open connection."""
    add_version(template())
    assert post(caller, USUAL | {"dedupeKey": "first"})[0] == 202
    return caller


def post(client: Client, request: Any) -> tuple[int, Any]:
    path = f"{URL}/bulk" if isinstance(request, list) else URL
    answer = client.post(path, json.dumps(request), content_type="application/json")
    return answer.status_code, answer.json()


@pytest.mark.parametrize(
    "request_",
    [USUAL, USUAL | {"dedupeKey": "second"},
     [USUAL | {"dedupeKey": str(each)} for each in range(100)]],
    ids=["alone", "with a key", "a hundred of one queue"],
)  # fmt: skip
def test_n1_a_request_takes_three_round_trips(shop: Client, proxy: Proxy, request_: Any):
    """BEGIN, claim and store; offer and announce; COMMIT."""
    stored = Notification.objects.count()
    before = proxy.rounds
    assert (post(shop, request_)[0], proxy.rounds - before) == (202, 3)
    count = len(request_) if isinstance(request_, list) else 1
    assert Notification.objects.count() == stored + count


def test_n9_a_duplicate_takes_three_round_trips(shop: Client, proxy: Proxy):
    """BEGIN, claim and store nothing; read the holder of the key; COMMIT."""
    before = proxy.rounds
    code, answer = post(shop, USUAL | {"dedupeKey": "first"})
    assert (code, answer["duplicate"], proxy.rounds - before) == (202, True, 3)


@pytest.mark.parametrize(
    "request_",
    [USUAL | {"context": {}}, {"channel": "email", "to": "ada"}],
    ids=["by its template", "whatever the template"],
)
def test_n1_a_refusal_takes_no_round_trip(shop: Client, proxy: Proxy, request_: Any):
    before = proxy.rounds
    assert (post(shop, request_)[0], proxy.rounds - before) == (400, 0)


def test_a_batch_in_a_transaction_is_offered_and_announced_in_one(proxied: None, proxy: Proxy):
    queue = DelayedQueue("orders")
    queue.offer_batch([ScheduledMessage("warm", 1)])
    before = proxy.rounds
    with transaction.atomic():
        queue.offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 2)])
    # With the BEGIN, and then the COMMIT.
    assert proxy.rounds - before == 2
    before = proxy.rounds
    queue.offer_batch([ScheduledMessage("c", 1)])
    # One reply to the offer and one to the announcement, sent together.
    assert proxy.rounds - before == 2
