"""The act of the notifications: real processes and providers, checks that can fail (N11)."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
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
    assert {"unsubscribed", "bounced"} <= {each["name"] for each in report["checks"]}

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
    assert "replaces it" in err.getvalue()


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
    """Return the rows that a good run leaves."""
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


def test_a_good_run_passes_every_check(found: Evidence):
    assert failed(found) == []


def put(found: Evidence, changed: tuple[str, Any]) -> None:
    found.rows |= dict([changed])


def arrive(found: Evidence, *arrivals: tuple[str, str, float]) -> None:
    found.arrivals = [*found.arrivals, *arrivals]


def vanish(found: Evidence, id_: str) -> None:
    found.arrivals = [each for each in found.arrivals if each[1] != id_]


def accept_a_wrong_one(found: Evidence) -> None:
    del found.traffic.refused[1]


def refuse_right_ones(found: Evidence) -> None:
    found.traffic.refused |= {2: WRONG, 3: WRONG}


def lose_bulk(found: Evidence) -> None:
    del found.rows["bulk"]


def keep_bulk_open(found: Evidence) -> None:
    vanish(found, "bulk")
    put(found, row("bulk", status=Status.PROCESSING))


def accept_a_code_twice(found: Evidence) -> None:
    put(found, row("code", channel="sms", is_doubtful=True))
    vanish(found, "code")
    arrive(found, ("sms", "code", 99.0), ("sms", "code", 99.0))


def keep_the_killed_one_open(found: Evidence) -> None:
    put(found, row("offer", status=Status.ENQUEUED, is_doubtful=True, was_interrupted=True))


def kill_an_idle_dispatcher(found: Evidence) -> None:
    found.rows["offer"].was_interrupted = False


def fact(name: str, value: Any) -> Callable[[Evidence], None]:
    return lambda found: setattr(found, name, value)


def posted(name: str, value: Any) -> Callable[[Evidence], None]:
    return lambda found: setattr(found.traffic, name, value)


def ended(status: Status) -> Callable[[Evidence], None]:
    return lambda found: put(found, row("bulk", status=status))


REFUSED, ACCEPTED, STORED = "invalid ones refused", "valid ones accepted", "stored once"
ARRIVED, RECORDED = "each sent one arrived", "each arrival recorded"
FAULTS: dict[str, tuple[Callable[[Evidence], None], list[str]]] = {
    "accepted": (accept_a_wrong_one, [REFUSED, STORED]),
    "refused": (refuse_right_ones, [ACCEPTED, STORED]),
    "parked twice": (fact("parked", [(5, WRONG)] * 2), ["none parked twice"]),
    "parked": (fact("parked", [(5, WRONG), (4, WRONG)]), [ACCEPTED, STORED]),
    "not parked": (fact("parked", []), [REFUSED, STORED]),
    "unsigned": (fact("unsigned", 1), ["webhooks signed"]),
    "messages": (fact("messages", 1), ["queues empty"]),
    "published": (posted("published", 3), ["none parked twice"]),
    "odd reply": (posted("surprises", ["500 to request 1"]), ["expected replies"]),
    "cancelled": (posted("cancelled", ["bulk"]), ["no cancelled one sent"]),
    "idle": (kill_an_idle_dispatcher, ["killed dispatchers"]),
    "lost": (lose_bulk, [STORED, "none lost", RECORDED]),
    "open": (keep_bulk_open, ["none lost"]),
    "still open": (keep_the_killed_one_open, ["none lost", "killed dispatchers"]),
    "stored twice": (lambda found: put(found, row("again", status=Status.CANCELLED)), [STORED]),
    "arrived twice": (lambda found: arrive(found, ("email", "bulk", 99.0)), ["none sent twice"]),
    "two providers": (accept_a_code_twice, ["none sent twice"]),
    "other channel": (lambda found: put(found, row("bulk", channel="sms")), [ARRIVED, RECORDED]),
    "not arrived": (lambda found: vanish(found, "bulk"), [ARRIVED]),
    "expired": (ended(Status.EXPIRED), [RECORDED]),
    "failed": (ended(Status.FAILED), [RECORDED]),
    "cancelled one": (ended(Status.CANCELLED), [RECORDED]),
    "stranger": (lambda found: arrive(found, ("sms", "stranger", 99.0)), [RECORDED]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_its_checks(found: Evidence, fault: str):
    change, names = FAULTS[fault]
    change(found)
    assert failed(found) == names


@pytest.mark.parametrize(("errors", "names"), [(TOO_LATE, []), (WRONG, [ACCEPTED])])
def test_a_valid_code_may_be_refused_only_because_it_expired(
    found: Evidence, errors: Any, names: list[str]
):
    del found.traffic.accepted[0]
    found.traffic.refused[0] = errors
    del found.rows["code"]
    vanish(found, "code")
    assert failed(found) == names


def test_one_that_came_too_late_is_noticed(found: Evidence):
    vanish(found, "code")
    arrive(found, ("email", "code", 101.0))
    assert failed(found) == ["none sent late"]
    found.lag = 1.0  # no later than the delay of the machine
    assert failed(found) == []


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
