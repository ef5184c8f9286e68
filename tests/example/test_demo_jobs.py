"""The act of the jobs: real servers and workers, and checks that can fail (J15)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command

from delayed_queue.models import DeadLetter, Message
from example_project.demo.jobs import DEAF, ORDERS, PAYMENTS, Jobs, Orders, Upstreams
from example_project.fakes import Call, FakeWeb

pytestmark = pytest.mark.usefixtures("demo_database")

SECRET, OTHER = ("whsec_" + base64.b64encode(each * 24).decode() for each in (b"k", b"x"))


@pytest.mark.long
@pytest.mark.slow
def test_the_three_scenarios_end_as_they_should():
    out = io.StringIO()
    call_command("demo", "jobs", "--format", "json", stdout=out, stderr=io.StringIO())
    report = json.loads(out.getvalue())["acts"]["jobs"]
    assert report["passed"] is True
    # More if a payment met the call in flight: delivered before its DELETE was answered.
    assert report["paid"] + report["closed"] >= ORDERS
    assert report["refunds"] == 40
    assert report["reported"] == PAYMENTS
    assert report["kicked"] == DEAF
    assert not Message.objects.filter(kind__endswith="|callback").exists()
    assert not DeadLetter.objects.filter(kind__endswith="|callback").exists()


@pytest.fixture
def receiver() -> Iterator[FakeWeb]:
    with FakeWeb() as found:
        yield found


NOBODY = Jobs("http://127.0.0.1", "")


def send(receiver: FakeWeb, secret: str, body: bytes, *, sent_at: int) -> int:
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"m.{sent_at}.".encode() + body, hashlib.sha256).digest()
    headers = {
        "webhook-id": "m", "webhook-timestamp": str(sent_at),
        "webhook-signature": "v1,AAAA v1," + base64.b64encode(digest).decode(),
    }  # fmt: skip
    request = urllib.request.Request(receiver.at("/x"), body, headers)  # noqa: S310 # ours
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("secret", "age", "status"),
    [
        (SECRET, 0, 200),
        ("whsec_" + base64.b64encode(b"x" * 24).decode(), 0, 401),
        (SECRET, 900, 401),
    ],
)
def test_the_receiver_takes_only_what_is_signed_and_recent(
    receiver: FakeWeb, secret: str, age: int, status: int
):
    receiver.secret = SECRET
    assert send(receiver, secret, b"{}", sent_at=int(time.time()) - age) == status
    assert receiver.unsigned == (status == 401)


def call(body: Any, at: float, answer: str = "204", webhook_id: str = "m") -> Call:
    return Call(body, webhook_id, at, at, answer)


@pytest.fixture
def some_orders(receiver: FakeWeb) -> Orders:
    """Two orders: one paid at 5, one closed at its time, 10."""
    found = Orders(NOBODY, receiver, random.Random(1))
    found.run_at = {"paid": 10.0, "closed": 10.0}
    found.paid_at = {"paid": 5.0}
    receiver.calls.append(call({"order": "closed"}, 10.0))
    return found


@pytest.mark.parametrize(
    ("order", "at", "failed"),
    [
        (None, 0.0, []),
        ("closed", 10.5, ["none closed twice"]),
        ("paid", 4.0, ["none closed early"]),
        ("paid", 11.0, ["no call after DELETE"]),
    ],
)
def test_each_check_of_the_orders_can_fail(
    some_orders: Orders, receiver: FakeWeb, order: str | None, at: float, failed: list[str]
):
    if order is not None:
        receiver.calls.append(call({"order": order}, at))
    assert [each.name for each in some_orders.checks() if not each.passed] == failed


def test_a_lost_order_is_noticed(some_orders: Orders):
    some_orders.run_at["lost"] = 1.0
    assert [each.name for each in some_orders.checks() if not each.passed] == ["no order lost"]


@pytest.mark.parametrize(
    ("second", "webhook_id", "failed"),
    [(1.0, "m", []), (0.5, "m", ["no early call"]), (1.0, "other", ["one webhook-id a job"])],
)
def test_each_check_of_the_upstreams_can_fail(
    receiver: FakeWeb, second: float, webhook_id: str, failed: list[str]
):
    found = Upstreams(NOBODY, receiver, random.Random(1))
    found.kicked = DEAF
    found.faults["p"] = ["500"]
    body = {"payment": "p"}
    receiver.calls += [call(body, 0.0, "500"), call(body, second, "200", webhook_id)]
    checks = found.checks_of_calls()
    assert [each.name for each in checks if not each.passed] == failed
