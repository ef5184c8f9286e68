"""The act of the jobs: real servers and workers (J15)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from django.core.management import call_command

from delayed_queue.models import DeadLetter, Message
from example_project.demo.jobs import DEAF, ORDERS, PAYMENTS
from example_project.fakes import FakeWeb

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
    ("secret", "age", "status"), [(SECRET, 0, 200), (OTHER, 0, 401), (SECRET, 900, 401)]
)
def test_the_receiver_takes_only_what_is_signed_and_recent(receiver, secret, age, status):
    receiver.secret = SECRET
    assert send(receiver, secret, b"{}", sent_at=int(time.time()) - age) == status
    assert receiver.unsigned == (status == 401)
