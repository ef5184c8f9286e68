"""The act of the notifications: real processes and providers, checks that can fail (N11)."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command

from delayed_queue.models import Message
from delayed_queue.notifications import intake
from delayed_queue.notifications.models import (
    FINAL_STATUSES,
    Notification,
    ParkedRequest,
    Status,
)
from delayed_queue.notifications.parking import Tally
from example_project.demo import notifications
from example_project.demo.notifications import (
    KINDS,
    SENT,
    TENANT,
    TOO_LATE,
    Evidence,
    Traffic,
    check,
    mail_answer,
    partner_answer,
    text_answer,
    way_of,
)
from example_project.samples import read_samples, set_up

pytestmark = pytest.mark.usefixtures("demo_database")

WRONG = [{"path": "to", "message": "is required"}]


@pytest.mark.slow
def test_everything_asked_for_ends_as_it_should_though_a_dispatcher_is_killed():
    out, err = io.StringIO(), io.StringIO()
    options = ["--notifications", "400", "--format", "json"]
    call_command("demo", "notifications", *options, stdout=out, stderr=err)
    report = json.loads(out.getvalue())["acts"]["notifications"]
    assert report["passed"] is True, report["checks"]

    stored = Notification.objects.filter(tenant=TENANT)
    assert set(stored.values_list("status", flat=True)) <= set(FINAL_STATUSES)
    assert report["requests"] == 400
    wrong = [each for each in list(read_samples())[:400] if each.kind == "wrong"]
    assert report["refused"] >= len(wrong) > 10
    parked = {int(id_) for id_ in ParkedRequest.objects.values_list("message_id", flat=True)}
    assert parked >= {each.number for each in wrong if each.via == "broker"}
    assert report["sent"] == stored.filter(status=SENT).count() > 250
    assert report["failed_over"] > 0
    assert report["retried"] > 0
    assert not Message.objects.filter(kind__in=KINDS).exists()
    assert "by SIGKILL" in err.getvalue()


# The checks, on a run of seven requests


def sample(number: int, kind: str = "letter", **request: Any) -> Any:
    return SimpleNamespace(number=number, kind=kind, line={"request": request})


def row(
    id_: str, *, is_doubtful: bool = False, was_interrupted: bool = False, **more: Any
) -> tuple[str, Any]:
    found: Any = Notification(**{"channel": "email", "status": SENT} | more)
    found.is_doubtful, found.was_interrupted = is_doubtful, was_interrupted
    return id_, found


def traffic() -> Traffic:
    samples = [
        sample(0, "code"), sample(1, "wrong"), sample(2, dedupeKey="k"), sample(3, dedupeKey="k"),
        sample(4), sample(5, "wrong"), sample(6),
    ]  # fmt: skip
    consumer: Any = SimpleNamespace(tally=Tally(1, 0, 1))
    nobody: Any = None
    return Traffic(
        samples, nobody, nobody, consumer, published=2, cancelled=["gone"],
        accepted={0: "code", 2: "bulk", 3: "bulk", 6: "offer"}, refused={1: WRONG},
    )  # fmt: skip


@pytest.fixture
def found() -> Evidence:
    """Return what a good run leaves."""
    rows = [
        row("code", expires_at=datetime.fromtimestamp(100, UTC)),
        row("bulk"),
        row("broker"),
        row(
            "offer", status=Status.FAILED, outcome="in doubt", is_doubtful=True,
            was_interrupted=True,
        ),
    ]  # fmt: skip
    return Evidence(
        traffic=traffic(),
        rows=dict(rows),
        parked=[(5, WRONG)],
        arrivals=[("email", id_, 99.0) for id_ in ("code", "bulk", "broker", "offer")],
        unsigned=0,
        messages=0,
    )


def failed(found: Evidence) -> list[str]:
    return [each.name for each in check(found) if not each.passed]


def test_a_good_run_is_good(found: Evidence):
    assert failed(found) == []


def without(found: Evidence, *ids: str) -> None:
    """Have none of these arrived."""
    found.arrivals = [each for each in found.arrivals if each[1] not in ids]


def test_what_is_wrong_and_was_accepted_is_noticed(found: Evidence):
    del found.traffic.refused[1]
    assert failed(found) == ["wrong, accepted 1", "stored once"]


def test_what_is_right_and_was_refused_is_noticed(found: Evidence):
    found.traffic.refused |= {2: WRONG, 3: WRONG}
    assert failed(found) == ["right, refused 2", "stored once"]


@pytest.mark.parametrize(("errors", "is_good"), [(TOO_LATE, True), (WRONG, False)])
def test_a_code_may_be_refused_only_because_it_expired_on_its_way(
    found: Evidence, errors: Any, is_good: bool
):
    del found.traffic.accepted[0]
    found.traffic.refused[0] = errors
    del found.rows["code"]
    without(found, "code")
    assert failed(found) == ([] if is_good else ["right, refused 1"])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"parked": [(5, WRONG)] * 2}, ["parked twice 1"]),
        ({"parked": [(5, WRONG), (4, WRONG)]}, ["right, refused 1", "stored once"]),
        ({"parked": []}, ["wrong, accepted 1", "stored once"]),
        ({"unsigned": 1}, ["unsigned 0"]),
        ({"messages": 1}, ["queues empty"]),
    ],
)
def test_each_check_of_a_fact_can_fail(found: Evidence, change: dict[str, Any], names: list[str]):
    for name, value in change.items():
        setattr(found, name, value)
    assert failed(found) == names


def test_a_kill_of_a_dispatcher_that_was_sending_nothing_shows_nothing(found: Evidence):
    found.rows["offer"].was_interrupted = False
    assert failed(found) == ["killed dispatchers"]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"published": 3}, ["parked twice 0"]),
        ({"surprises": ["500 to request 1"]}, ["odd answers 1"]),
        ({"cancelled": ["bulk"]}, ["cancelled, sent 1"]),
    ],
)
def test_so_can_each_of_what_was_posted(found: Evidence, change: dict[str, Any], names: list[str]):
    for name, value in change.items():
        setattr(found.traffic, name, value)
    assert failed(found) == names


def put(found: Evidence, changed: tuple[str, Any]) -> None:
    found.rows |= dict([changed])


def test_a_notification_that_is_gone_is_lost(found: Evidence):
    del found.rows["bulk"]
    assert failed(found) == ["stored once", "lost 1", "seen, not sent 1"]


@pytest.mark.parametrize("status", [Status.ENQUEUED, Status.PROCESSING])
def test_one_that_has_not_ended_is_lost(found: Evidence, status: Status):
    without(found, "bulk")
    put(found, row("bulk", status=status))
    assert failed(found) == ["lost 1"]


def test_one_that_was_stored_twice_is_noticed(found: Evidence):
    put(found, row("again", status=Status.CANCELLED))
    assert failed(found) == ["stored once"]


def test_one_that_arrived_twice_is_noticed(found: Evidence):
    found.arrivals = [*found.arrivals, ("email", "bulk", 99.0)]
    assert failed(found) == ["sent twice 1"]


def test_one_that_two_providers_accepted_is_noticed_even_in_doubt(found: Evidence):
    put(found, row("code", channel="sms", is_doubtful=True))
    without(found, "code")
    found.arrivals = [*found.arrivals, *[("sms", "code", 99.0)] * 2]
    assert failed(found) == ["sent twice 1"]


def test_one_that_came_by_another_channel_is_noticed(found: Evidence):
    put(found, row("bulk", channel="sms"))
    assert failed(found) == ["sent, not seen 1", "seen, not sent 1"]


def test_one_that_never_arrived_is_noticed(found: Evidence):
    without(found, "bulk")
    assert failed(found) == ["sent, not seen 1"]


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.FAILED, Status.CANCELLED])
def test_one_that_arrived_though_the_table_says_otherwise_is_noticed(
    found: Evidence, status: Status
):
    put(found, row("bulk", status=status))
    assert failed(found) == ["seen, not sent 1"]


def test_one_that_nobody_asked_for_is_noticed(found: Evidence):
    found.arrivals = [*found.arrivals, ("sms", "stranger", 99.0)]
    assert failed(found) == ["seen, not sent 1"]


def test_one_that_came_too_late_is_noticed(found: Evidence):
    without(found, "code")
    found.arrivals = [*found.arrivals, ("email", "code", 101.0)]
    assert failed(found) == ["sent late 1"]
    found.lag = 1.0  # no later than the machine itself
    assert failed(found) == []


def test_one_of_the_killed_dispatcher_that_is_still_open_is_noticed(found: Evidence):
    put(found, row("offer", status=Status.ENQUEUED, is_doubtful=True, was_interrupted=True))
    assert failed(found) == ["lost 1", "killed dispatchers"]


# The parts


def test_every_request_has_one_way_and_its_time():
    samples = list(read_samples())
    assert len(samples) == 10_000
    assert {way_of(each) for each in samples} == {"single", "bulk", "broker"}
    nobody: Any = None
    played = Traffic(samples, nobody, nobody, nobody)
    assert played.due_at(samples[0]) >= played.began_at
    assert played.due_at(samples[9_999]) == pytest.approx(played.began_at + 24)


def test_faults_come_once_and_are_the_same_at_each_run():
    addresses = [f"a{number}@example.org" for number in range(1000)]
    greylisted = next(each for each in addresses if mail_answer(each, 1) == "450")
    assert mail_answer(greylisted, 2) == ""
    assert [mail_answer("nobody-01@example.org", times) for times in (1, 2)] == ["550", "550"]
    numbers = [f"+4477009{number:05}" for number in range(1000)]
    faults = {text_answer({"to": each}, 1) for each in numbers}
    assert {"", "503 0", "429 0", "drop", "drop-after", "hang-after", "blocked"} <= faults
    assert {text_answer({"to": each}, 2) for each in numbers} == {"", "blocked"}
    third, down = {"path": "/partners/3"}, {"path": "/partners/13"}
    assert [partner_answer(third, times) for times in (1, 2)] == ["503", ""]
    assert [partner_answer(down, times) for times in (1, 9)] == ["503", "503"]


def test_answers_that_a_service_must_never_get_are_surprises(found: Evidence):
    found.traffic.note(sample(7), 500, {"code": "server_error"})
    assert 7 in found.traffic.refused
    assert found.traffic.surprises == ["500 to request 8"]


def test_a_run_begins_by_clearing_what_was_left():
    set_up()
    request = {"channel": "email", "to": "ada@example.org", "subject": "a", "body": "b"}
    for tenant in (TENANT, "somebody"):
        intake.accept([request], tenant=tenant)
    notifications.NotificationsAct().clear()
    [left] = Notification.objects.all()
    assert left.tenant == "somebody"
    assert [each.key for each in Message.objects.filter(kind__in=KINDS)] == [str(left.id)]
