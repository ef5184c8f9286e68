"""Attempts that need a provider's and a recipient's permit (N9)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

import psycopg
import pytest
from asgiref.sync import async_to_sync
from pytest_django import Settings

from delayed_queue import Envelope
from delayed_queue.http import rates
from delayed_queue.http.models import Rate
from delayed_queue.http.rates import SharedRate
from delayed_queue.http.store.callers import TAKE_PERMITS
from delayed_queue.notifications.channels import Route
from delayed_queue.notifications.dispatching import Attempt
from delayed_queue.notifications.models import Status
from delayed_queue.notifications.providers import Outcome, Verdict
from delayed_queue.notifications.services import Outgoing
from delayed_queue.notifications.settling import Settlement
from delayed_queue.rates import Circuit, State
from tests.notifications.configured import configure
from tests.notifications.factories import begin, enqueue, lease
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

SENT: Final = Status.SUCCESSFULLY_PROCESSED
HOURLY: Final = 1 / 3600
ONE: Final = b"\x01" * 16


@pytest.fixture(autouse=True)
def throttled(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A recipient gets one per hour; an attempt without a provider's permit does not wait."""
    configure(settings, {"THROTTLE": {"email": (HOURLY, 1)}, "WAIT": timedelta(0)})
    # By the process's clock no permit is lost in between.
    monkeypatch.setattr("delayed_queue.http.rates.time", SimpleNamespace(monotonic=lambda: 1000.0))
    rates.forget()
    yield
    rates.forget()


class Willing:
    """A provider that accepts everything."""

    name, is_idempotent = "mail", True

    async def send(self, begun: Outgoing) -> Outcome:
        return Outcome(Verdict.ACCEPTED)

    def close(self) -> None:
        pass


def route(burst: int, circuit: Circuit | None = None, per_second: float = HOURLY) -> Route:
    rate = SharedRate("provider:mail", per_second, burst)
    return Route(Willing(), rate, circuit or Circuit(10, timedelta(0)))


Waiting = tuple[Envelope, Outgoing]


def begun(recipient: bytes = ONE) -> Waiting:
    envelope = lease(enqueue(recipient_hash=recipient))
    found = begin(envelope)
    assert found is not None
    return envelope, found


def attempt(waiting: Waiting, way: Route) -> Settlement:
    return async_to_sync(Attempt(*waiting, [way]).run)()


def throttles() -> int:
    """Return the number of recipients with a used permit."""
    return Rate.objects.filter(name__startswith="recipient:").count()


@pytest.mark.parametrize(("end", "is_sent"), [("COMMIT", False), ("ROLLBACK", True)])
def test_n9_who_waits_for_a_provider_s_last_permit_has_used_none_of_its_recipient(
    other: psycopg.Connection[Any], admin: psycopg.Connection[Any], end: str, is_sent: bool
):
    last = {
        "name": "provider:mail", "least": 1, "most": 1, "interval": 3.6e9, "burst": 3_600_000_000,
        "now": None,
    }  # fmt: skip
    message = begun()
    other.execute("BEGIN")
    assert other.execute(TAKE_PERMITS, last).fetchall() == [(1, 0)]
    with calling(partial(attempt, message, route(1))) as call:
        wait_until_blocked(admin, call)
        assert throttles() == 0
        other.execute(end)
        assert call.answer().status == (SENT if is_sent else Status.ENQUEUED)
    assert throttles() == is_sent


def test_n9_of_twenty_at_once_the_five_that_are_sent_use_permits_and_no_others():
    messages = [begun(bytes([number]) * 16) for number in range(20)]
    way = route(5)
    ends = together([partial(attempt, each, way) for each in messages])
    assert [each.status for each in ends].count(SENT) == 5
    assert throttles() == 5


def test_n9_of_twenty_for_one_recipient_one_is_sent():
    messages = [begun() for _ in range(20)]
    ends = together([partial(attempt, each, route(20)) for each in messages])
    assert [each.status for each in ends].count(SENT) == 1


@pytest.mark.parametrize("hinders", ["the recipient", "the provider"])
def test_n9_a_probe_that_is_not_made_is_left_to_the_next(hinders: str):
    """The first real send shows that a provider has recovered."""
    circuit = Circuit(1, timedelta(hours=1))
    circuit.set(State.HALF_OPEN)
    if hinders == "the recipient":
        assert SharedRate(f"recipient:{ONE.hex()}", HOURLY, 1).take() == timedelta(0)
        rates.forget()
    else:
        assert SharedRate("provider:mail", HOURLY, 1).take() == timedelta(0)
    burst = 1 if hinders == "the provider" else 5
    assert attempt(begun(), route(burst, circuit)).status == Status.ENQUEUED
    assert circuit.is_open
    Rate.objects.filter(name="provider:mail").delete()
    rates.forget()
    assert attempt(begun(b"\x02" * 16), route(burst, circuit)).status == SENT
    assert not circuit.is_open
