"""The act of the notifications: real processes and third parties, and checks that can fail."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.core.management import call_command

from delayed_queue.models import DeadLetter, Message
from example_project.demo.notifications.campaign import TENANT, Counts, import_rows
from example_project.demo.notifications.checks import TOO_LATE, check
from example_project.demo.notifications.evidence import Evidence, Parked, Witness
from example_project.demo.notifications.figures import KINDS, OURS, Row
from example_project.demo.notifications.posting import message_id, number_of
from example_project.demo.notifications.strangers import MailServer, Partners, Texts
from example_project.demo.notifications.traffic import (
    BROKER_TENANT,
    REST_TENANT,
    Answer,
    Traffic,
    Way,
    read_traffic,
    way_of,
)
from example_project.demo.notifications.upstream import Upstream
from example_project.notifications.models import (
    FINAL_STATUSES,
    Notification,
    ParkedRequest,
    Source,
    Status,
)
from example_project.notifications.parking import Tally
from example_project.notifications.samples import read_samples, set_up

pytestmark = pytest.mark.django_db(transaction=True)

SENT = Status.SUCCESSFULLY_PROCESSED


@pytest.mark.slow
def test_everything_asked_for_ends_as_it_should_though_a_dispatcher_is_killed():
    out, err = io.StringIO(), io.StringIO()
    options = ["--notifications", "600", "--format", "json"]
    call_command("demo", "notifications", *options, stdout=out, stderr=err)
    report = json.loads(out.getvalue())["acts"]["notifications"]
    assert report["passed"] is True, report["checks"]

    stored = Notification.objects.filter(tenant__in=OURS)
    assert set(stored.values_list("status", flat=True)) <= set(FINAL_STATUSES)
    assert sum(report["accepted"].values()) + report["refused"] == report["requests"] == 600
    wrong = [each for each in list(read_samples())[:600] if each.kind == "wrong"]
    assert report["refused"] >= len(wrong) > 20
    parked = {number_of(id_) for id_ in ParkedRequest.objects.values_list("message_id", flat=True)}
    assert parked >= {each.number for each in wrong if each.via == "broker"}
    assert sum(report["sent"].values()) == stored.filter(status=SENT).count() > 400
    assert report["failed_over"] > 0
    assert report["retried"] > 0
    assert not Message.objects.filter(kind__in=KINDS).exists()
    assert "with SIGKILL" in err.getvalue()


# The checks, on a run of four requests: one sent, one in bulk, one by the broker, one of a campaign


def sample(number: int, way: Way, kind: str = "letter", **request: Any) -> Any:
    @dataclass
    class Stub:
        number: int
        kind: str
        line: dict[str, Any] = field(default_factory=dict)

    return Stub(number, kind, {"request": request})


def row(id_: str, tenant: str = REST_TENANT, **more: Any) -> Row:
    return Row(id_, tenant, **{"channel": "email", "status": SENT} | more)


def traffic() -> Traffic:
    samples = {
        Way.SINGLE: [sample(0, Way.SINGLE, "code"), sample(1, Way.SINGLE, "wrong")],
        Way.BULK: [sample(2, Way.BULK, dedupeKey="k"), sample(3, Way.BULK, dedupeKey="k")],
        Way.BROKER: [sample(4, Way.BROKER), sample(5, Way.BROKER, "wrong")],
        Way.CAMPAIGN: [sample(6, Way.CAMPAIGN)],
    }
    traffic = read_traffic(10, "")
    traffic.samples = samples
    traffic.by_number = {each.number: each for some in samples.values() for each in some}
    return traffic


@pytest.fixture
def found() -> Evidence:
    """Return what a good run leaves."""
    rows = [
        row("code", expires_at=100.0),
        row("bulk"),
        row("broker", BROKER_TENANT),
        row("offer", TENANT, status=Status.FAILED, outcome="in doubt", is_doubtful=True),
    ]
    return Evidence(
        traffic=traffic(),
        rows={each.id: each for each in rows},
        answers=[
            Answer(0, Way.SINGLE, "code"),
            Answer(1, Way.SINGLE, reasons=("to: is required",)),
            Answer(2, Way.BULK, "bulk"),
            Answer(3, Way.BULK, "bulk", is_duplicate=True),
        ],
        published=2,
        tally=Tally(1, 0, 1),
        parked=[Parked(5, 1, ("to: is required",))],
        campaign=Counts(1),
        cancelled=["gone"],
        surprises=[],
        witnesses={
            "email": [Witness(dict.fromkeys(("code", "bulk", "broker", "offer"), 1), {"code": 99})],
            "sms": [Witness(), Witness()],
            "webhook": [Witness()],
        },
        unsigned=0,
        in_flight={"offer"},
        unfinished={"offer"},
        messages=0,
        dead_letters={"offer"},
        exit_codes=[0, 0],
        waits={},
        busiest_second=1,
        killed="",
        seconds=1.0,
    )


def failed(found: Evidence) -> list[str]:
    return [each.name for each in check(found) if not each.passed]


def test_a_good_run_is_good(found: Evidence):
    assert failed(found) == []


def test_what_is_wrong_and_was_accepted_is_noticed(found: Evidence):
    found.answers = [found.answers[0], Answer(1, Way.SINGLE, "code"), *found.answers[2:]]
    assert failed(found) == ["wrong, accepted 1", "stored once"]


def test_what_is_right_and_was_refused_is_noticed(found: Evidence):
    found.answers = [*found.answers[:2], *(Answer(n, Way.BULK, reasons=("x",)) for n in (2, 3))]
    assert failed(found) == ["right, refused 2", "stored once"]


@pytest.mark.parametrize(("reason", "is_good"), [(TOO_LATE, True), ("to: is required", False)])
def test_a_code_may_be_refused_only_because_it_expired_on_its_way(
    found: Evidence, reason: str, is_good: bool
):
    found.answers = [Answer(0, Way.SINGLE, reasons=(reason,)), *found.answers[1:]]
    found.rows = {id_: each for id_, each in found.rows.items() if id_ != "code"}
    found.witnesses["email"][0].accepted = {"bulk": 1, "broker": 1}
    assert failed(found) == ([] if is_good else ["right, refused 1"])


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"parked": [Parked(5, 2, ("x",))]}, ["parked"]),
        (
            {"parked": [Parked(5, 1, ("x",)), Parked(4, 1, ("x",))]},
            ["right, refused 1", "parked", "stored once"],
        ),
        ({"parked": []}, ["wrong, accepted 1", "parked", "stored once"]),
        ({"tally": Tally(0, 0, 1)}, ["parked"]),
        ({"surprises": ["500 to request 1"]}, ["odd answers 1"]),
        ({"cancelled": ["bulk"]}, ["cancelled, sent 1"]),
        ({"unsigned": 1}, ["unsigned 0"]),
        ({"unfinished": set()}, ["killed dispatcher"]),
        ({"in_flight": set()}, ["killed dispatcher"]),
        ({"messages": 1}, ["queues empty"]),
        ({"exit_codes": [0, -9]}, ["processes stopped"]),
        ({"exit_codes": []}, ["processes stopped"]),
    ],
)  # fmt: skip
def test_each_check_of_a_fact_can_fail(found: Evidence, change: dict[str, Any], names: list[str]):
    for name, value in change.items():
        setattr(found, name, value)
    assert failed(found) == names


def put(found: Evidence, changed: Row) -> None:
    found.rows = {**found.rows, changed.id: changed}


def test_a_notification_that_is_gone_is_lost(found: Evidence):
    found.rows = {id_: each for id_, each in found.rows.items() if id_ != "bulk"}
    assert failed(found) == ["stored once", "lost 1", "seen, not sent 1"]


@pytest.mark.parametrize("status", [Status.ENQUEUED, Status.PROCESSING])
def test_one_that_has_not_ended_is_lost(found: Evidence, status: Status):
    found.witnesses["email"][0].accepted = {"code": 1, "broker": 1}
    put(found, row("bulk", status=status))
    assert failed(found) == ["lost 1"]


def test_one_that_was_stored_twice_is_noticed(found: Evidence):
    put(found, row("again", status=Status.CANCELLED))
    assert failed(found) == ["stored once"]


def test_one_that_arrived_twice_is_noticed(found: Evidence):
    found.witnesses["email"][0].accepted = {**found.witnesses["email"][0].accepted, "bulk": 2}
    assert failed(found) == ["sent twice 1"]


def test_one_that_two_providers_accepted_is_noticed_even_in_doubt(found: Evidence):
    put(found, row("code", channel="sms", is_doubtful=True))
    del found.witnesses["email"][0].accepted["code"]  # type: ignore[attr-defined]
    for each in found.witnesses["sms"]:
        each.accepted = {"code": 1}
    assert failed(found) == ["sent twice 1"]


def test_one_that_never_arrived_is_noticed(found: Evidence):
    found.witnesses["email"][0].accepted = {"code": 1, "broker": 1}
    assert failed(found) == ["sent, not seen 1"]


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.FAILED, Status.CANCELLED])
def test_one_that_arrived_though_the_table_says_otherwise_is_noticed(
    found: Evidence, status: Status
):
    put(found, row("bulk", status=status))
    assert failed(found) == ["seen, not sent 1"]


def test_one_that_nobody_asked_for_is_noticed(found: Evidence):
    found.witnesses["sms"][0].accepted = {"stranger": 1}
    assert failed(found) == ["seen, not sent 1"]


def test_one_that_came_too_late_is_noticed(found: Evidence):
    found.witnesses["email"][0].began_at = {"code": 101.0}
    assert failed(found) == ["sent late 1"]


def test_one_that_is_dead_and_still_open_is_noticed(found: Evidence):
    put(found, row("offer", TENANT, status=Status.ENQUEUED, is_doubtful=True))
    assert failed(found) == ["lost 1", "killed dispatcher", "dead, still open 1"]


# The parts


def test_every_request_has_one_way():
    traffic = read_traffic(None, "http://127.0.0.1:1")
    assert traffic.count == 10_000
    assert all(traffic.samples[way] for way in Way)
    for way, samples in traffic.samples.items():
        assert all(way_of(each) is way for each in samples)
    assert traffic.due_at(traffic.by_number[9_999]) == pytest.approx(traffic.seconds)
    assert number_of(message_id(traffic.by_number[7])) == 7
    assert number_of("another") == -1


def test_a_campaign_is_stored_once_and_its_wrong_rows_are_told_of():
    set_up()
    rows: list[object] = [
        {
            "channel": "email",
            "to": "ada@example.org",
            "subject": "a",
            "body": "b",
            "dedupeKey": "1",
        },
        {"channel": "email", "to": "nobody", "subject": "a", "body": "b"},
    ]
    first, second = import_rows(rows), import_rows(rows)
    reason = "to: is not an email address such as ada@example.org"
    assert first == Counts(1, 0, first.refused)
    assert first.refused == {reason: 1}
    assert second == Counts(0, 1, second.refused)
    assert (first + second).refused == {reason: 2}
    assert Notification.objects.get().source == Source.IMPORT


def test_faults_come_once_and_are_the_same_at_each_run():
    with MailServer() as mail, Texts() as texts, Partners() as partners:
        greylisted = next(
            f"a{n}@example.org"
            for n in range(1000)
            if mail.at_recipient(f"a{n}@example.org") == "450"
        )
        assert mail.at_recipient(greylisted) == ""
        assert mail.at_recipient("nobody-01@example.org") == "550"
        numbers = [{"to": f"+4477009{n:05}"} for n in range(1000)]
        faults = {texts.behaviour(each, 1) for each in numbers}
        assert {"", "503", "429", "drop", "drop-after", "hang-after", "blocked"} <= faults
        assert {texts.behaviour(each, 2) for each in numbers} == {"", "blocked"}
        assert [partners.behaviour("partners/3", times) for times in (1, 2)] == ["503", ""]
        assert [partners.behaviour("partners/13", times) for times in (1, 9)] == ["503", "503"]


def test_answers_that_a_service_must_never_get_are_surprises():
    upstream = Upstream("http://127.0.0.1:1", "")
    assert upstream._read(0, Way.SINGLE, 500, {"code": "server_error"}).reasons
    assert upstream.surprises == ["500 to request 1"]


def test_a_run_begins_by_clearing_what_was_left():
    from example_project.demo.notifications.accounts import clear

    set_up()
    import_rows([{"channel": "email", "to": "ada@example.org", "subject": "a", "body": "b"}])
    other = {"channel": "email", "to": "ada@example.org", "subject": "a", "body": "b"}
    import_rows([other], tenant="somebody")
    clear()
    [left] = Notification.objects.all()
    assert left.tenant == "somebody"
    assert [each.key for each in Message.objects.filter(kind__in=KINDS)] == [str(left.id)]
    assert not DeadLetter.objects.exists()
