"""O23: what the search box of messages and dead letters finds."""

from __future__ import annotations

import pytest
from django.test import Client
from django.utils.http import urlencode

from delayed_queue import DelayedQueue
from delayed_queue.admin import lists
from delayed_queue.models import DeadLetter, Worker
from tests.admin.lists import keys_of
from tests.admin.support import LETTERS, MESSAGES, page
from tests.support.factories import DeadLetterFactory, MessageFactory, from_now, worker_row

pytestmark = pytest.mark.django_db

ERROR = "shop.GatewayDown: smtp.example.org"


@pytest.fixture
def messages() -> None:
    MessageFactory.create(key="order-1", kind="a|json", group="customer-1", due=True)
    MessageFactory.create(key="order-12", kind="b|json", headers={"tenant": "acme", "n": 5})
    MessageFactory.create(key="invoice-1", kind="a|json", group="customer-1", leased=True)
    MessageFactory.create(key="group:odd", kind="b|json", last_error=ERROR, due=True)
    MessageFactory.create(key="part", kind="b|json", batch_id=7)
    held = MessageFactory.create(key="held", kind="b|json", leased=True, lease_id="0a1b2c3d-1")
    Worker.objects.create(
        name="web-2", host="h-7", pid=1, process=0, queues=[], version="1", rates={},
        started_at=from_now(), heartbeat_at=from_now(), holder=str(held.lease_id)[:8],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("search", "kind", "keys"),
    [
        ("order-1", "", ["order-1", "order-12"]), (" order-12 ", "", ["order-12"]),
        ("order-", "b|json", ["order-12"]), ("Order", "", []), ("", "a|json", None),
        ("key:order-1", "", ["order-1"]), ("key:group:odd", "", ["group:odd"]),
        ("group:customer-1", "a|json", ["invoice-1", "order-1"]),
        ("group:customer-1", "b|json", []), ("group:customer-1", "", []),
        ("worker:web", "", ["held"]), ("worker:h-7", "b|json", ["held"]), ("worker:x", "", []),
        ("lease:0a1b2c3d", "", ["held"]), ("lease:0a1b2c3d-1", "", ["held"]), ("lease:", "", []),
        ("batch:7", "", ["part"]), ("batch:x", "", []), ("batch:²", "", []),
        ("header:tenant=acme", "", ["order-12"]), ("header:n=5", "b|json", ["order-12"]),
        ("header:tenant=ac", "", []), ("header:tenant", "", []), ("header:n=[[", "", []),
        ("failure:gatewaydown", "", ["group:odd"]), ("failure:gatewaydown", "a|json", []),
    ],
)  # fmt: skip
def test_messages(admin_client, messages, search, kind, keys):
    query = {"q": search} | ({"kind": kind} if kind else {})
    found = keys_of(page(admin_client, f"{MESSAGES}?{urlencode(query)}"))
    assert sorted(found) == (keys if keys is not None else ["invoice-1", "order-1"])


@pytest.mark.parametrize(
    ("search", "kind", "keys"),
    [
        ("order-", "", ["order-1", "order-2"]), ("key:order-2", "", ["order-2"]),
        ("group:customer-1", "a|json", ["order-1"]), ("group:customer-1", "", []),
        ("reason:exhausted", "", ["order-1"]), ("reason:exhausted", "b|json", []),
        ("failure:gateway", "", ["order-2"]), ("failure:abcd", "", ["order-1"]),
        ("header:tenant=acme", "b|json", ["order-2"]),
        ("worker:web", "", ["order-1"]), ("worker:h-7", "a|json", ["order-1"]),
        ("worker:w2", "", []), ("worker:web", "b|json", []),
    ],
)  # fmt: skip
def test_dead_letters(admin_client: Client, search: str, kind: str, keys: list[str]):
    DeadLetterFactory.create(
        key="order-1", kind="a|json", group="customer-1", reason="attempts exhausted",
        fingerprint="abcd" * 4, lease_id="0a1b2c3d-9",
    )  # fmt: skip
    worker_row("web-2", host="h-7", holder="0a1b2c3d")
    worker_row("web-1", host="h-8")
    DeadLetterFactory.create(
        key="order-2", kind="b|json", reason="rejected", last_error=ERROR,
        headers={"tenant": "acme"},
    )  # fmt: skip
    query = {"q": search} | ({"kind": kind} if kind else {})
    assert keys_of(page(admin_client, f"{LETTERS}?{urlencode(query)}")) == keys


def test_a_dead_letter_keeps_its_last_lease(admin_client: Client):
    DelayedQueue("orders").offer_or_update("order-1", 1)
    (envelope,) = DelayedQueue("orders").try_poll_many(1)
    assert envelope.reject("no address")
    letter = DeadLetter.objects.get()
    assert letter.lease_id == envelope.lease_id
    url = f"{LETTERS}{letter.pk}/change/"
    assert envelope.lease_id in page(admin_client, url)
    worker_row("web-2", holder=envelope.lease_id[:8])
    html = page(admin_client, url)
    assert "web-2" in html
    assert envelope.lease_id not in html


def test_a_group_needs_its_queue_and_the_page_says_so(admin_client: Client):
    assert "Choose a queue" in page(admin_client, f"{MESSAGES}?q=group:customer-1")
    assert "Choose a queue" not in page(admin_client, f"{MESSAGES}?q=group:c&kind=a|json")


def test_a_search_that_no_index_serves_goes_on_from_page_to_page(admin_client, monkeypatch):
    monkeypatch.setattr(lists, "SCANNED", 10)
    for number in range(35):
        headers = {"tenant": "acme"} if number in (3, 33) else None
        MessageFactory.create(key=f"m-{number}", headers=headers)
    found, query, pages = [], "?q=header:tenant=acme", 0
    while query:
        html = page(admin_client, MESSAGES + query)
        found += keys_of(html)
        query = html.partition(' rel="next"')[0].rpartition('href="')[2].partition('"')[0]
        query = query.replace("&amp;", "&") if ' rel="next"' in html else ""
        pages += 1
    assert (found, pages) == (["m-33", "m-3"], 4)


def test_groups_are_read_in_order_over_leased_and_waiting(admin_client: Client):
    for number in range(80):
        lease = f"lease-{number}" if number % 2 else None
        MessageFactory.create(
            key=f"{number:03}", kind="a|json", group="g", lease_id=lease,
            scheduled_at=from_now(seconds=number),
        )  # fmt: skip
    first = page(admin_client, f"{MESSAGES}?q=group:g&kind=a|json")
    after = first.partition(' rel="next"')[0].rpartition('href="')[2].partition('"')[0]
    second = page(admin_client, MESSAGES + after.replace("&amp;", "&"))
    assert keys_of(first) + keys_of(second) == [f"{number:03}" for number in range(80)]
