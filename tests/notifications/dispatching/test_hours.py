"""Local times and quiet hours (N16)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from delayed_queue.models import Message
from delayed_queue.notifications.hours import Quiet, next_local
from delayed_queue.notifications.models import Delivery, Status
from delayed_queue.notifications.validation import Request, validate
from tests.notifications.dispatchers import dispatcher, ended
from tests.notifications.factories import enqueue
from tests.notifications.requests import email
from tests.notifications.test_validation import NOW, SHELF, errors
from tests.support.processes import wait_until
from tests.support.running import running


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("wall", "zone", "after", "found"),
    [
        ("09:00", "Asia/Kolkata", "2031-05-01T00:00", "2031-05-01T03:30"),
        ("09:00", "Asia/Kolkata", "2031-05-01T03:30", "2031-05-01T03:30"),
        ("09:00", "Asia/Kolkata", "2031-05-01T03:31", "2031-05-02T03:30"),
        ("23:30", "Pacific/Kiritimati", "2031-05-01T11:00", "2031-05-02T09:30"),
        # The clocks skip 02:30, and show 01:30 twice.
        ("02:30", "Europe/Berlin", "2026-03-28T12:00", "2026-03-29T01:30"),
        ("02:30", "Europe/Berlin", "2026-10-24T12:00", "2026-10-25T00:30"),
        ("02:30", "Europe/Berlin", "2026-10-25T00:31", "2026-10-26T01:30"),
        # Samoa skipped this day.
        ("12:00", "Pacific/Apia", "2011-12-30T01:00", "2011-12-30T22:00"),
    ],
)  # fmt: skip
def test_n16_a_local_time_comes_next_in_its_zone(wall: str, zone: str, after: str, found: str):
    assert next_local(wall, ZoneInfo(zone), at(after)) == at(found)


@pytest.mark.parametrize(
    ("hours", "zone", "now", "until"),
    [
        ("21:00 08:00", "UTC", "2031-05-01T20:59:59.999", None),
        ("21:00 08:00", "UTC", "2031-05-01T21:00", "2031-05-02T08:00"),
        ("21:00 08:00", "UTC", "2031-05-02T07:59:59.999", "2031-05-02T08:00"),
        ("21:00 08:00", "UTC", "2031-05-02T08:00", None),
        ("12:00 13:30", "Asia/Kolkata", "2031-05-01T06:30", "2031-05-01T08:00"),
        ("12:00 13:30", "Asia/Kolkata", "2031-05-01T08:00", None),
        # The clocks skip 02:00 to 03:00, and show it twice.
        ("01:00 02:30", "Europe/Berlin", "2026-03-29T01:29", "2026-03-29T01:30"),
        ("02:15 02:45", "Europe/Berlin", "2026-10-25T00:20", "2026-10-25T00:45"),
        ("02:15 02:45", "Europe/Berlin", "2026-10-25T01:20", None),
    ],
)  # fmt: skip
def test_n16_quiet_hours_include_their_start_only(hours: str, zone: str, now: str, until: str):
    assert Quiet.read(f"{hours} {zone}").until(at(now)) == (until and at(until))


def accepted(**values: Any) -> Request:
    found = validate(email(**values), SHELF.find, NOW)
    assert isinstance(found, Request)
    return found


def test_n16_a_request_in_quiet_hours_waits_for_their_end():
    here = NOW.strftime("%H:%M")
    later = (NOW + timedelta(hours=2)).strftime("%H:%M")
    quiet = {"quiet": [here, later], "zone": "UTC"}
    found = accepted(**quiet)
    assert found.send_at is not None
    assert timedelta(hours=1) < found.send_at - NOW <= timedelta(hours=2)
    assert found.quiet == f"{here} {later} UTC"
    urgent = accepted(**quiet, priority="urgent")
    assert (urgent.send_at, urgent.quiet) == (None, "")
    local = {"local": (NOW + timedelta(hours=1)).strftime("%H:%M"), "zone": "UTC"}
    assert accepted(sendAt=local, quiet=[here, later]).send_at == found.send_at


KOLKATA = {"zone": "Asia/Kolkata"}


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({"sendAt": {"local": "9:00", **KOLKATA}}, "sendAt.local"),
        ({"sendAt": {"local": "24:00", **KOLKATA}}, "sendAt.local"),
        ({"sendAt": {"local": "09:00"}}, "sendAt"),
        ({"sendAt": {"local": "09:00", "zone": "Mars/Olympus"}}, "sendAt.zone"),
        ({"sendAt": {"local": "09:00", "zone": "../../etc/passwd"}}, "sendAt.zone"),
        ({"sendAt": {"local": "09:00", **KOLKATA, "day": 1}}, "sendAt"),
        ({"sendAt": 9}, "sendAt"),
        ({"quiet": ["21:00", "08:00"]}, "zone"),
        ({"quiet": ["21:00"], **KOLKATA}, "quiet"),
        ({"quiet": ["21:00", "21:00"], **KOLKATA}, "quiet"),
        ({"quiet": ["21:00", "8"], **KOLKATA}, "quiet[1]"),
        ({"quiet": "21:00", **KOLKATA}, "quiet"),
        ({"zone": "x"}, "zone"), ({"zone": "x" * 65}, "zone"), ({"zone": 1}, "zone"),
    ],
)  # fmt: skip
def test_n16_n22_what_is_no_local_time_is_named(values: dict[str, Any], path: str):
    assert [each.path for each in errors(email(**values))] == [path]


@pytest.mark.django_db(transaction=True)
def test_n16_quiet_hours_are_checked_again_when_it_is_sent(dispatch: dict[str, Any]):
    now = datetime.now(UTC)
    hours = [(now + timedelta(hours=each)).strftime("%H:%M") for each in (-2, 2)]
    quiet = enqueue(quiet=f"{hours[0]} {hours[1]} UTC")
    late = enqueue(quiet=f"{hours[0]} {hours[1]} UTC", expires_at=now + timedelta(hours=1))
    enqueue(quiet=f"{hours[1]} {hours[0]} UTC")
    with running(dispatcher()):
        wait_until(lambda: ended() == 2 and is_deferred(str(quiet.pk)))
    for each in (quiet, late):
        each.refresh_from_db()
    assert (quiet.status, quiet.attempts) == (Status.ENQUEUED, 0)
    assert late.status == Status.EXPIRED
    assert Delivery.objects.count() == 1


def is_deferred(key: str) -> bool:
    message = Message.objects.get(key=key)
    return message.scheduled_at > datetime.now(UTC) + timedelta(hours=1)
