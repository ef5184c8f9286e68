"""The dispatcher against every failure of providers (N7, N8)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection

from delayed_queue.models import DeadLetter, Message
from delayed_queue.notifications.models import Notification, Status
from delayed_queue.notifications.providers import Outcome
from delayed_queue.notifications.services import Outgoing
from tests.notifications.dispatchers import (
    SENT,
    dispatch_all,
    dispatcher,
    email_entry,
    sms_entry,
    statuses,
)
from tests.notifications.factories import begin, enqueue, lease, lose_lease
from tests.notifications.fakes import FakeSms, FakeSmtp
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = pytest.mark.django_db(transaction=True)

SMS: dict[str, Any] = {"channel": "sms", "recipient": "+40721234567"}
LOST = "SMTPServerDisconnected"
DOUBT = (Status.FAILED, "in doubt")


def enqueue_sms(text: str = "", **values: Any) -> Notification:
    return enqueue(**SMS | {"body": f"{text} Your code is 7."} | values)


def end_of(notification: Notification) -> tuple[str, str]:
    notification.refresh_from_db()
    return notification.status, notification.outcome


def calls_of(notification: Notification) -> list[tuple[str, str, str]]:
    return list(
        notification.deliveries.order_by("id").values_list("provider", "outcome", "error_class")
    )


# N25: the ends of sessions, and what counts as an attempt


@pytest.mark.parametrize(
    ("phase", "code"), [("MAIL", 421), ("MAIL", 452), ("RCPT", 421), ("DATA", 421)]
)
@pytest.mark.parametrize("per_session", [1, 3])
def test_n25_a_relay_that_ends_its_session_costs_no_attempt(dispatch, phase, code, per_session):
    with FakeSmtp(per_session=per_session, code=code, phase=phase) as relay:
        dispatch["PROVIDERS"]["email"] = [email_entry(relay, threads=1)]
        made = [enqueue() for _ in range(10)]
        dispatch_all(10)
    for each in made:
        each.refresh_from_db()
        assert (each.status, each.attempts, each.deliveries.count()) == (SENT, 1, 1)


def test_n25_a_connection_that_was_closed_while_idle_costs_no_attempt(dispatch, smtp):
    dispatch["PROVIDERS"]["email"][0]["threads"] = 1
    first = enqueue()
    with running(dispatcher()):
        wait_until(lambda: end_of(first)[0] == SENT)
        smtp.close_sessions()
        second = enqueue()
        wait_until(lambda: end_of(second)[0] == SENT)
    assert (second.attempts, smtp.connections) == (1, 2)
    assert calls_of(second) == [("mail", "sent", "")]


# N8: email


@pytest.mark.parametrize(
    ("behaviour", "status", "outcome", "calls"),
    [
        ("ada", SENT, "", [("mail", "sent", "")]),
        ("550+ada", Status.FAILED, "refused: 550", [("mail", "refused", "550")]),
        ("450+ada", Status.FAILED, "attempts exhausted", [("mail", "failed", "450")] * 4),
        ("refuse-data+ada", Status.FAILED, "refused: 554", [("mail", "refused", "554")]),
        ("drop+ada", Status.FAILED, "attempts exhausted", [("mail", "failed", LOST)] * 4),
        ("drop-after+ada", *DOUBT, [("mail", "ambiguous", LOST)]),
    ],
)  # fmt: skip
def test_n8_what_an_smtp_server_answers_decides(dispatch, smtp, behaviour, status, outcome, calls):
    notification = enqueue(recipient=f"{behaviour}@example.org")
    dispatch_all(1)

    assert end_of(notification) == (status, outcome)
    assert calls_of(notification) == calls
    is_accepted = behaviour in ("ada", "drop-after+ada")
    assert smtp.accepted == ({str(notification.id): 1} if is_accepted else {})


@pytest.mark.parametrize(
    ("behaviour", "end", "recorded"),
    [("hang", (Status.FAILED, "attempts exhausted"), "failed"), ("hang-after", DOUBT, "ambiguous")],
)
def test_n8_an_smtp_server_that_falls_silent_is_transient_before_data_and_ambiguous_after(
    dispatch: dict[str, Any], smtp: FakeSmtp, behaviour: str, end: tuple[str, str], recorded: str
):
    dispatch["PROVIDERS"]["email"][0]["timeout"] = 0.2
    notification = enqueue(recipient=f"{behaviour}+ada@example.org")
    dispatch_all(1)
    assert end_of(notification) == end
    assert {call[1] for call in calls_of(notification)} == {recorded}


def test_n8_the_message_id_is_that_of_the_notification_and_is_stored(dispatch: dict[str, Any]):
    notification = enqueue(html="<p>Hello, Ada.</p>")
    dispatch_all(1)
    notification.refresh_from_db()
    assert notification.provider_id == f"<{notification.id}@example.org>"


def test_n8_a_refused_recipient_does_not_spoil_the_connection_for_the_next(dispatch, smtp):
    dispatch["PROVIDERS"]["email"][0]["threads"] = 1
    for number in range(10):
        enqueue(recipient=f"{'550+' if number % 2 else ''}ada{number}@example.org")
    assert dispatch_all(10) == {SENT: 5, Status.FAILED: 5}
    assert smtp.connections == 1


# N8: SMS over HTTP, from a provider with idempotency keys


@pytest.mark.parametrize(
    ("asked", "status", "calls", "sent"),
    [
        ("", SENT, ["sent"], 1),
        ("[503,1]", SENT, ["failed", "sent"], 1),
        ("[429,2]", SENT, ["sent"], 1),
        ("[500,1]", SENT, ["ambiguous", "sent"], 1),
        ("[drop-after,1]", SENT, ["ambiguous", "sent"], 1),
        ("[drop,1]", SENT, ["ambiguous", "sent"], 1),
        ("[400]", Status.FAILED, ["refused"], 0),
        ("[422]", Status.FAILED, ["refused"], 0),
        ("[blocked]", Status.FAILED, ["refused"], 0),
        ("[401]", Status.FAILED, ["failed"] * 4, 0),
        ("[302]", Status.FAILED, ["failed"] * 4, 0),
    ],
)
def test_n8_what_an_http_provider_answers_decides(dispatch, sms, asked, status, calls, sent):
    notification = enqueue_sms(asked)
    dispatch_all(1)
    assert end_of(notification)[0] == status
    assert [call[1] for call in calls_of(notification)] == calls
    assert sms.accepted[str(notification.id)] == sent


def test_n8_a_provider_that_times_out_after_accepting_sends_once(dispatch, sms):
    dispatch["PROVIDERS"]["sms"][0]["timeout"] = 1.0
    notification = enqueue_sms("[hang-after,1]")
    dispatch_all(1)
    assert end_of(notification)[0] == SENT
    assert sms.accepted == {str(notification.id): 1}
    assert sms.seen == {str(notification.id): 2}


def test_n8_a_form_works_like_json(dispatch: dict[str, Any], sms: FakeSms):
    dispatch["PROVIDERS"]["sms"][0]["encoding"] = "form"
    notification = enqueue_sms()
    dispatch_all(1)
    assert end_of(notification)[0] == SENT
    notification.refresh_from_db()
    assert notification.provider_id == "sms-1"


def test_n8_an_address_nobody_listens_at_is_transient(dispatch: dict[str, Any]):
    with FakeSms() as gone:
        dispatch["PROVIDERS"]["sms"][0]["url"] = gone.url
    notification = enqueue_sms()
    dispatch_all(1)
    assert end_of(notification) == (Status.FAILED, "attempts exhausted")
    assert calls_of(notification)[0][1:] == ("failed", "ClientConnectorError")


# N8: failover


def test_n8_a_transient_failure_goes_to_the_next_provider_at_once(dispatch, sms, two):
    sms.is_down = True
    notification = enqueue_sms()
    dispatch_all(1)
    assert end_of(notification)[0] == SENT
    assert [call[:2] for call in calls_of(notification)] == [
        ("texts", "failed"),
        ("second", "sent"),
    ]
    notification.refresh_from_db()
    assert notification.provider == "second"
    assert (sms.accepted, two.accepted) == ({}, {str(notification.id): 1})


def test_n8_a_permanent_failure_goes_to_no_other(dispatch: dict[str, Any], two: FakeSms):
    notification = enqueue_sms("[blocked]")
    dispatch_all(1)
    assert end_of(notification) == (Status.FAILED, "refused: blocked")
    assert two.seen == {}


def test_n8_an_ambiguous_outcome_goes_to_no_other_but_to_the_same_again(dispatch, sms, two):
    """Even though the first is down at the second attempt."""
    notification = enqueue_sms("[drop-after,1]")
    sms.on_accepted = lambda key: setattr(sms, "is_down", True)
    with running(dispatcher()):
        wait_until(lambda: sms.seen[str(notification.id)] >= 2)
        sms.is_down = False
        wait_until(lambda: end_of(notification)[0] in (SENT, Status.FAILED))
    assert end_of(notification)[0] == SENT
    assert two.seen == {}
    assert sms.accepted == {str(notification.id): 1}


def test_n8_after_a_failover_the_doubt_is_about_the_provider_that_was_called_last(
    dispatch: dict[str, Any], sms: FakeSms, two: FakeSms
):
    """The first works again, and would send it a second time."""
    sms.is_down = True
    two.on_accepted = lambda key: setattr(sms, "is_down", False)
    notification = enqueue_sms("[drop-after,1]")
    dispatch_all(1)
    assert end_of(notification)[0] == SENT
    assert (sms.accepted, two.accepted) == ({}, {str(notification.id): 1})


def test_n8_the_doubt_outlives_an_attempt_in_which_nobody_may_be_called(dispatch, sms, two):
    """The provider that may have the message is closed by its breaker just then."""
    dispatch |= {"CIRCUIT_FAILURES": 1, "CIRCUIT_PAUSE": timedelta(seconds=0.5)}
    notification = enqueue_sms("[drop-after,1]")
    dispatch_all(1)
    assert end_of(notification)[0] == SENT
    assert (sms.accepted, two.seen) == ({str(notification.id): 1}, {})


def test_n8_without_keys_an_ambiguous_outcome_is_final(settings, dispatch):
    with FakeSms(has_keys=False) as plain, FakeSms() as second:
        dispatch["PROVIDERS"]["sms"] = [sms_entry(plain), sms_entry(second, "second")]
        notification = enqueue_sms("[drop-after]")
        dispatch_all(1)
    assert end_of(notification) == DOUBT
    assert plain.accepted == {str(notification.id): 1}
    assert second.seen == {}


def test_n8_a_provider_that_fails_again_and_again_is_left_alone(dispatch, sms, two):
    dispatch |= {"CIRCUIT_FAILURES": 3, "CIRCUIT_PAUSE": timedelta(minutes=1)}
    sms.is_down = True
    for _ in range(60):
        enqueue_sms()
    assert dispatch_all(60, async_concurrency=1) == {SENT: 60}
    assert sum(sms.seen.values()) == 3
    assert len(two.accepted) == 60


@pytest.mark.parametrize(
    ("is_begun", "outcome", "calls"),
    [(True, ", in doubt", [("", "unfinished", "")]), (False, "", [])],
    ids=["in a call", "before it"],
)
def test_n3_a_dead_letter_fails_its_notification(dispatch, sms, is_begun, outcome, calls):
    """Each attempt has killed its dispatcher."""
    notification = enqueue_sms(callback_url="https://shop.example/ended")
    envelope = lease(notification)
    if is_begun:
        begin(envelope)
    Message.objects.update(attempts=dispatch["RETRY"].max_attempts)
    lose_lease(envelope)
    dispatch_all(1)
    reason = DeadLetter.objects.get().reason
    assert end_of(notification) == (Status.FAILED, f"given up: {reason}{outcome}")
    assert calls_of(notification) == calls
    assert Message.objects.get().key == f"{notification.id}:{Status.FAILED}"
    assert sms.seen == {}


class WithDatabase:
    """A provider that has sent the message when it loses its own database."""

    is_idempotent, sent = False, 0

    def __init__(self, name: str) -> None:
        self.name = name

    async def send(self, begun: Outgoing) -> Outcome:
        WithDatabase.sent += 1
        raise OperationalError("the connection is lost")

    def close(self) -> None:
        pass


def test_n8_a_database_error_of_a_provider_is_ambiguous(dispatch: dict[str, Any]):
    path = f"{WithDatabase.__module__}.{WithDatabase.__qualname__}"
    dispatch["PROVIDERS"]["sms"] = [{"kind": path, "name": "texts"}]
    notification = enqueue_sms()
    dispatch_all(1)
    assert end_of(notification) == DOUBT
    assert WithDatabase.sent == 1


# N7


def is_no_transaction_open() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            " AND (xact_start IS NOT NULL OR state <> 'idle')"
        )
        return bool(cursor.fetchone() == (0,))


def test_n7_no_transaction_is_open_while_a_provider_is_called(dispatch, sms):
    dispatch["PROVIDERS"]["sms"][0]["timeout"] = 20.0
    for _ in range(3):
        enqueue_sms("[hang-after]")
    with running(dispatcher()):
        wait_until(lambda: len(sms.accepted) == 3)
        # One of the calls would hang as long as the provider; a poll in between does not.
        wait_until(is_no_transaction_open)
        assert statuses() == {Status.PROCESSING: 3}
        sms.release()


def test_n7_connections_that_are_lost_during_a_call_cost_no_second_one(dispatch, sms):
    """Faults: the settlement is written on a new connection."""
    notification = enqueue_sms("[wait]")
    dispatch["PROVIDERS"]["sms"][0]["timeout"] = 20.0
    with running(dispatcher()):
        wait_until(lambda: sms.hanging == 1)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        sms.release()
        wait_until(lambda: end_of(notification)[0] == SENT)
    assert sms.seen == {str(notification.id): 1}


def test_n4_what_is_logged_names_neither_recipient_nor_content(dispatch, sms, caplog):
    with caplog.at_level(logging.DEBUG, logger="delayed_queue"):
        enqueue(recipient="550+secret@example.org", body="classified", subject="hidden")
        enqueue_sms("[503,1] classified")
        dispatch_all(2)
    # All records except those of the fake server.
    written = "".join(each.getMessage() for each in caplog.records if each.name != "mail.log")
    assert "event=polled" in written
    for word in ("secret", "classified", "hidden", SMS["recipient"]):
        assert word not in written
