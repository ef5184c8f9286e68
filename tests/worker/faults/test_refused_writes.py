"""Writes that the database refuses affect their own message alone (W19)."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import connection
from prometheus_client import CollectorRegistry

from delayed_queue import (
    DelayedQueue,
    Envelope,
    Groups,
    Reject,
    RetryPolicy,
    ScheduledMessage,
    Snooze,
)
from delayed_queue.exceptions import DatabaseRefused
from delayed_queue.http.callbacks.attempts import AttemptLog
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.models import BulkRun, DeadLetter, Message, Sample
from delayed_queue.observe.history import Sampler, Tally
from delayed_queue.observe.metrics import PrometheusInstrument
from delayed_queue.observe.workers import ALIVE
from delayed_queue.queue.bulk import BulkPlan, step
from delayed_queue.worker.engine.heartbeat import Heartbeat
from tests.support.concurrency import raw_connection
from tests.support.factories import DeadLetterFactory
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.refusing import refusing
from tests.support.running import handler_of, running, worker_with

pytestmark = [pytest.mark.django_db(transaction=True)]

LATER: Final = RetryPolicy.ladder("1h 1h")
BAD: Final = "bad"


NO_DELETE: Final = ("DELETE", f"""OLD."pKey" = '{BAD}'""")
# For a leased message, so that it can be claimed.
NO_RELEASE: Final = ("UPDATE", f"""OLD."pKey" = '{BAD}' AND NEW."lockUuid" IS NULL""")
NO_LETTER: Final = ("INSERT", f"""NEW."pKey" = '{BAD}'""", "delayed_queue_dead_letter")


class Calls:
    """A handler that counts its calls by key, and acts as the key names."""

    def __init__(self) -> None:
        self.by_key: Counter[str] = Counter()

    def __call__(self, envelope: Envelope) -> None:
        self.by_key[envelope.key] += 1
        match envelope.payload:
            case "fail":
                raise ValueError("asked to fail")
            case "reject":
                raise Reject("asked to be rejected")
            case "snooze":
                raise Snooze(timedelta(hours=1))


@pytest.fixture
def calls() -> Calls:
    return Calls()


def offer(queue: DelayedQueue, payload: object = None, good: int = 40) -> None:
    keys = [*(f"good{each}" for each in range(good // 2)), BAD,
            *(f"good{each}" for each in range(good // 2, good))]  # fmt: skip
    queue.offer_batch(
        [ScheduledMessage(each, payload if each == BAD else None, PAST) for each in keys]
    )


def only_the_refused_one_is_left() -> bool:
    return list(Message.objects.values_list("key", flat=True)) == [BAD]


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    found = [vars(each) for each in caplog.records]
    return [each["fields"] for each in found if each.get("event") == event]


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return logged(caplog, "write_refused")


def is_released() -> bool:
    return Message.objects.filter(key=BAD, lease_id=None).exists()


@pytest.mark.parametrize("is_transactional", [False, True])
def test_w19_a_refused_acknowledgement_leaves_all_other_messages_alone(
    calls: Calls, caplog: pytest.LogCaptureFixture, is_transactional: bool
) -> None:
    """It comes back after its retry wait, and is logged with its key and SQLSTATE."""
    offer(DelayedQueue("refused"))
    handler = handler_of("refused", calls, retry=LATER, transactional=is_transactional)
    worker = worker_with(handler)
    with refusing(*NO_DELETE), running(worker):
        wait_until(only_the_refused_one_is_left)
        wait_until(is_released)
        DelayedQueue("refused").offer_or_update("after", None, PAST)
        wait_until(lambda: calls.by_key["after"])
        wait_until(only_the_refused_one_is_left)
    left = Message.objects.get()
    assert left.attempts == 1
    assert "refused by a test" in (left.last_error or "")
    assert set(calls.by_key.values()) <= {1}
    (line,) = refusals(caplog)
    assert (line["queue"], line["key"], line["sqlstate"]) == ("refused", BAD, "23514")
    assert not DeadLetter.objects.exists()
    assert (worker.counts.done, worker.counts.failed) == (41, 1)


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize(
    ("payload", "trigger"),
    [
        ("reject", NO_DELETE),
        ("reject", NO_LETTER),
        ("fail", ("UPDATE", f"""OLD."pKey" = '{BAD}' AND NEW."lastError" LIKE '%asked%'""")),
    ],
)
def test_a_refused_settlement_of_a_failure_is_released(
    calls, caplog, payload, trigger, is_transactional
):
    offer(DelayedQueue("refused"), payload)
    handler = handler_of("refused", calls, retry=LATER, transactional=is_transactional)
    with refusing(*trigger), running(worker_with(handler)):
        wait_until(only_the_refused_one_is_left)
        wait_until(is_released)
    assert calls.by_key[BAD] == 1 or is_transactional
    assert len(refusals(caplog)) == 1
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize("is_transactional", [False, True])
def test_w19_a_dead_letter_that_was_refused_reports_the_refusal(calls, is_transactional):
    """And not as a crash, since no process crashed."""
    offer(DelayedQueue("refused"), "fail", good=2)
    handler = handler_of(
        "refused", calls, retry=RetryPolicy.never(), transactional=is_transactional
    )
    with running(worker_with(handler)):
        with refusing(*NO_LETTER):
            wait_until(only_the_refused_one_is_left)
            wait_until(is_released)
        Message.objects.update(scheduled_at=PAST)
        DelayedQueue("refused").offer_or_update("after", None, PAST)
        wait_until(DeadLetter.objects.exists)
    letter = DeadLetter.objects.get()
    assert letter.reason == "attempts exhausted"
    assert "SQLSTATE 23514" in (letter.last_error or "")
    assert calls.by_key[BAD] == (2 if is_transactional else 1)


@pytest.mark.parametrize("payload", [None, "fail", "reject", "snooze"])
def test_what_can_neither_be_deleted_nor_released_waits_for_the_end_of_its_lease(
    calls: Calls, caplog: pytest.LogCaptureFixture, payload: str | None
) -> None:
    offer(DelayedQueue("refused"), payload)
    worker = worker_with(handler_of("refused", calls, retry=LATER))
    with refusing(*NO_DELETE), refusing(*NO_RELEASE), running(worker):
        wait_until(only_the_refused_one_is_left)
        wait_until(lambda: refusals(caplog))
        wait_until(lambda: worker.in_flight == 0)
    assert calls.by_key[BAD] == 1
    assert Message.objects.get().lease_id is not None


def test_w19_a_renewal_that_is_refused_lets_no_other_lease_lapse(caplog):
    """It causes no second delivery."""
    attempts: Counter[str] = Counter()
    go_on = threading.Event()

    def take_long(envelope: Envelope) -> None:
        attempts[envelope.key] += 1
        assert go_on.wait(30)

    queue = DelayedQueue("refused")
    queue.offer_batch([ScheduledMessage(each, None, PAST) for each in ("a", BAD, "c", "d")])
    handler = handler_of("refused", take_long, retry=LATER, lease=timedelta(seconds=2))
    no_renewal = f"""OLD."pKey" = '{BAD}' AND NEW."lockUuid" = OLD."lockUuid" """
    first = worker_with(handler, concurrency=4)
    with refusing("UPDATE", no_renewal), running(first):
        wait_until(lambda: len(attempts) == 4)
        wait_until(lambda: refusals(caplog))
        with running(worker_with(handler, concurrency=4)):
            wait_until(lambda: attempts[BAD] > 1)
            go_on.set()
            wait_until(lambda: not Message.objects.exists())
    assert {attempts[each] for each in ("a", "c", "d")} == {1}


@contextmanager
def as_role() -> Iterator[Callable[[str], None]]:
    """Give new sessions a role with all rights; yield a function that grants or revokes one."""
    name = f"refused_{connection.settings_dict['NAME']}"
    options = connection.settings_dict["OPTIONS"]
    with raw_connection() as admin:

        def run(statement: str) -> None:
            admin.execute(statement.replace("WORKER", f'"{name}"').encode())

        run("CREATE ROLE WORKER")
        try:
            for objects in ("TABLES", "SEQUENCES"):
                run(f"GRANT ALL ON ALL {objects} IN SCHEMA public TO WORKER")
            connection.close()
            connection.settings_dict["OPTIONS"] = {**options, "options": f"-c role={name}"}
            yield run
        finally:
            connection.close()
            connection.settings_dict["OPTIONS"] = options
            run("DROP OWNED BY WORKER")
            run("DROP ROLE WORKER")


@pytest.mark.slow
def test_w19_a_claim_without_the_right_is_reported_and_does_not_spin(calls, caplog):
    """One log line and one pause per try, until the right is back."""
    queue = DelayedQueue("refused")
    worker = worker_with(handler_of("refused", calls, retry=LATER))
    with as_role() as run, running(worker):
        queue.offer_or_update("before", None, PAST)
        wait_until(lambda: worker.counts.done == 1)
        run("REVOKE UPDATE ON delayed_queue FROM WORKER")
        wait_until(lambda: "event=claim_refused" in caplog.text)
        assert worker.consumers[0].schedule.next_at - time.monotonic() > 1
        run("GRANT UPDATE ON delayed_queue TO WORKER")
        queue.offer_or_update("after", None, PAST)
        wait_until(lambda: worker.counts.done == 2)
    lines = logged(caplog, "claim_refused")
    assert (lines[0]["queue"], lines[0]["sqlstate"]) == ("refused", "42501")
    assert len(lines) <= 3
    assert "database_unavailable" not in caplog.text


# Refuses the update of a claim, and any update of the message.
NO_LEASE: Final = ("UPDATE", f"""OLD."pKey" = '{BAD}' AND NEW."lockUuid" IS NOT NULL""")
NO_UPDATE: Final = ("UPDATE", f"""OLD."pKey" = '{BAD}'""")


@pytest.mark.parametrize("groups", [None, Groups(concurrency=3)])
@pytest.mark.parametrize(("is_burst", "retry"), [(False, LATER), (True, RetryPolicy.never())])
@pytest.mark.parametrize(("trigger", "place"), [(NO_LEASE, "queue"), (NO_UPDATE, "dead_letter")])
def test_w19_a_message_that_cannot_be_leased_holds_up_no_other(
    calls, caplog, trigger, place, is_burst, retry, groups
):
    """It comes back after its retry wait, or becomes a dead letter, without an attempt."""
    offer(DelayedQueue("refused"))
    worker = worker_with(handler_of("refused", calls, retry=retry, groups=groups), burst=is_burst)
    with refusing(*trigger):
        if is_burst:
            worker.run()
        else:
            with running(worker):
                wait_until(lambda: worker.counts.done == 40)
                wait_until(lambda: worker.in_flight == 0)
    assert set(calls.by_key.values()) == {1}
    assert BAD not in calls.by_key
    (line,) = logged(caplog, "claim_refused")
    assert (line["key"], line["sqlstate"], line["moved_to"]) == (BAD, "23514", place)
    found: Message | DeadLetter = (Message if place == "queue" else DeadLetter).objects.get()
    assert (found.key, found.attempts) == (BAD, 0)
    assert "refused by a test" in (found.last_error or "")


def test_w19_a_queue_of_which_every_lease_is_refused_is_left_as_it_is(calls, caplog):
    """Also while another transaction holds one of its messages."""
    offer(DelayedQueue("refused"), good=4)
    before = list(Message.objects.order_by("id").values())
    worker = worker_with(handler_of("refused", calls, retry=LATER))
    with refusing("UPDATE", "true"), raw_connection() as other, other.transaction():
        other.execute("SELECT FROM delayed_queue WHERE \"pKey\" = 'good0' FOR UPDATE")
        with running(worker):
            wait_until(lambda: logged(caplog, "claim_refused"))
    assert "key" not in logged(caplog, "claim_refused")[0]
    assert list(Message.objects.order_by("id").values()) == before
    assert not DeadLetter.objects.exists()


def test_a_burst_whose_claim_is_refused_ends_with_an_error(calls: Calls) -> None:
    DelayedQueue("refused").offer_or_update("key", None, PAST)
    worker = worker_with(handler_of("refused", calls), burst=True)
    with refusing("UPDATE", "true"), pytest.raises(DatabaseRefused, match="refused by a test"):
        worker.run()


def test_queuehealth_and_the_metric_show_what_was_refused(calls, capsys):
    registry = CollectorRegistry()
    PrometheusInstrument(registry)
    offer(DelayedQueue("refused"), good=3)
    worker = worker_with(handler_of("refused", calls, retry=LATER))
    with refusing(*NO_DELETE), running(worker):
        wait_until(lambda: worker.counts.failed)
        Heartbeat("default", worker.describe).beat()
        with pytest.raises(SystemExit):
            call_command("queuehealth", "--queue", "refused")
    said = capsys.readouterr().out
    assert "refused: the database refused 1 writes lately (SQLSTATE 23514)" in said
    found = registry.get_sample_value("delayed_queue_messages_refused_total", {"queue": "refused"})
    assert found == 1


# Other writes of a worker


def test_a_worker_whose_row_is_refused_still_carries_out_bulk_runs(calls, caplog):
    DeadLetterFactory.create(kind="bulk|json")
    BulkPlan("drop", "bulk|json").start()
    worker = worker_with(handler_of("refused", calls))
    with refusing("INSERT", "true", "delayed_queue_worker"), running(worker):
        wait_until(lambda: not DeadLetter.objects.exists())
    assert len(logged(caplog, "heartbeat_failed")) == 1


@pytest.mark.parametrize("action", ["redrive", "drop"])
def test_a_bulk_run_skips_the_letter_that_is_refused(action, caplog):
    for key in ("a", BAD, "c", "d"):
        DeadLetterFactory.create(kind="bulk|json", key=key)
    run_id = BulkPlan(action, "bulk|json").start()
    with refusing("DELETE", f"""OLD."pKey" = '{BAD}'""", "delayed_queue_dead_letter"):
        while step():
            pass
    assert DeadLetter.objects.get().key == BAD
    run = BulkRun.objects.get(pk=run_id)
    assert (run.state, run.done, run.skipped) == ("done", 3, 1)
    (line,) = logged(caplog, "letter_refused")
    assert line["key"] == BAD


def test_the_samples_of_other_queues_are_written_when_one_is_refused(caplog):
    tallies = [Tally("good|json"), Tally("bad|json"), Tally("fine|json")]
    for each in tallies:
        each.done = 3
    with refusing("INSERT", """NEW."pKind" = 'bad|json'""", "delayed_queue_sample"):
        Sampler("default", ALIVE).look(tallies)
    written = Sample.objects.exclude(kind="").values_list("kind", flat=True)
    assert set(written) == {"good|json", "fine|json"}
    assert logged(caplog, "sample_failed")[0]["kind"] == "bad|json"


async def _log_attempts(keys: list[str]) -> None:
    attempts = AttemptLog("default")
    for key in keys:
        attempts.add(
            CallbackAttempt(
                key=key, topic="t", kind="t|raw", webhook_id="w", attempt=1, started_at=1,
                duration=1, status=200,
            )
        )  # fmt: skip
    await attempts.close()


def test_the_attempts_of_other_jobs_are_logged_when_one_is_refused(caplog):
    table = CallbackAttempt._meta.db_table
    with refusing("INSERT", f"NEW.key = '{BAD}'", table):
        async_to_sync(_log_attempts)(["a", BAD, "c"])
    assert set(CallbackAttempt.objects.values_list("key", flat=True)) == {"a", "c"}
    assert logged(caplog, "attempts_not_logged")[0]["key"] == BAD
