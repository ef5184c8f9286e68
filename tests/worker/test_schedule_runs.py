"""Runs of schedules: recorded with the settlement of their ticks, shown to operators (O19)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import StringIO
from typing import Any, Final

import psycopg
import pytest
from django.core.management import call_command
from django.test import Client

from delayed_queue import DelayedQueue, Envelope, Reject, RetryPolicy, ScheduledMessage, Snooze
from delayed_queue.cron.models import ScheduleRun
from delayed_queue.cron.runs import DONE, Run, record_step
from delayed_queue.db.statements import fetch
from delayed_queue.models import DeadLetter, Message
from tests.admin.support import page
from tests.cron.schedules import SCHEDULES, made, url
from tests.support.running import handler_of, worker_with

pytestmark = pytest.mark.django_db(transaction=True)

HASH: Final = "0" * 32
PLANNED: Final = datetime(2026, 5, 1, 3, 30, tzinfo=UTC)
HOUR: Final = RetryPolicy.ladder("1h")


def key(number: int = 0, prefix: str = "nightly") -> str:
    milliseconds = int((PLANNED + timedelta(days=number)).timestamp() * 1000)
    return f"{prefix}/{HASH}/{milliseconds}"


def handle(function: Callable[[Envelope], Any], *keys: str, **options: Any) -> list[str]:
    """Handle messages with these keys; return the keys in the order of their handlers."""
    handled: list[str] = []
    offered = [ScheduledMessage(each, 1) for each in keys]
    DelayedQueue("reports").offer_batch(offered)

    def recorded(envelope: Envelope) -> None:
        handled.append(envelope.key)
        function(envelope)

    async def arecorded(envelope: Envelope) -> None:
        recorded(envelope)

    is_async = options.pop("is_async", False)
    handler = handler_of("reports", arecorded if is_async else recorded, **options)
    worker_with(handler, burst=True, concurrency=1, worker_id="web-1").run()
    return handled


def fail(envelope: Envelope) -> None:
    raise ValueError("no")


def reject(envelope: Envelope) -> None:
    raise Reject("never")


def snooze(envelope: Envelope) -> None:
    raise Snooze(timedelta(hours=1))


def pass_over(envelope: Envelope) -> None:
    return None


KINDS: Final = [{}, {"is_async": True}, {"transactional": True}, {"timeout": timedelta(minutes=1)}]


@pytest.mark.parametrize("options", KINDS, ids=["thread", "async", "transactional", "timeout"])
@pytest.mark.parametrize(
    ("function", "retry", "outcome"),
    [
        (pass_over, HOUR, "done"), (fail, HOUR, "failed"), (fail, RetryPolicy.never(), "dead"),
        (reject, HOUR, "dead"), (snooze, HOUR, None),
    ],
    ids=["done", "failed", "exhausted", "rejected", "snoozed"],
)  # fmt: skip
def test_o19_a_run_is_recorded(options, function, retry, outcome):
    schedule = made()
    handle(function, key(), retry=retry, **options)
    if outcome is None:
        assert not ScheduleRun.objects.exists()
        return
    run = ScheduleRun.objects.get()
    assert (run.schedule_id, run.key, run.planned_at) == (schedule.pk, key(), PLANNED)
    assert (run.outcome, run.attempts, run.worker) == (outcome, 1, "web-1")
    assert run.started_at is not None
    assert timedelta(0) <= run.finished_at - run.started_at < timedelta(seconds=20)
    assert abs(run.finished_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_o19_a_retry_updates_the_run_and_keeps_its_start() -> None:
    made()
    handle(fail, key(), retry=HOUR)
    first = ScheduleRun.objects.get()
    Message.objects.update(scheduled_at=PLANNED)
    handle(pass_over)
    last = ScheduleRun.objects.get()
    assert (last.outcome, last.attempts, last.started_at) == ("done", 2, first.started_at)


def test_o19_run_now_is_a_run() -> None:
    made()
    handle(pass_over, "nightly/run-now-1777606200000")
    assert ScheduleRun.objects.get().planned_at == PLANNED


@pytest.mark.parametrize(
    "other", ["k", "nightly", key(prefix="weekly"), "a/b/c", "x-1777606200000"]
)
def test_o19_other_messages_are_not_runs(other: str) -> None:
    made()
    made(key_prefix="weekly", type="")  # installed by a program
    handle(pass_over, other)
    assert not ScheduleRun.objects.exists()


def test_o19_ticks_keep_their_order_among_other_messages() -> None:
    made()
    keys = ["a", key(0), key(1), "b", key(2), "c"]
    assert handle(pass_over, *keys) == keys
    assert ScheduleRun.objects.count() == 3


def test_o19_the_last_ten_runs_are_kept() -> None:
    made()
    for number in range(14):
        handle(pass_over, key(number))
    found = list(ScheduleRun.objects.order_by("-planned_at").values_list("key", flat=True))
    assert found[:10] == [key(13 - number) for number in range(10)]
    assert len(found) <= 11


def test_o19_a_lost_lease_records_nothing() -> None:
    made()
    queue = DelayedQueue("reports")
    queue.offer_or_update(key(), 1)
    (envelope,) = queue.try_poll_many(1)
    step = record_step(queue.kind, "w", [Run(envelope, DONE, 1.0, 0.0)])
    queue.offer_or_update(key(), 2)
    fetch("default", *step)
    assert not ScheduleRun.objects.exists()


def test_o19_pruning_does_not_wait_for_another_worker(other: psycopg.Connection[Any]) -> None:
    made()
    for number in range(11):
        handle(pass_over, key(number))
    with other.transaction():
        other.execute("SELECT FROM delayed_queue_schedule_run FOR UPDATE")
        handle(pass_over, key(12))
        assert ScheduleRun.objects.count() == 12
    handle(pass_over, key(13))
    assert ScheduleRun.objects.count() == 11


@pytest.mark.parametrize("transactional", [False, True])
def test_o19_a_record_that_is_refused_does_not_repeat_the_run(other, caplog, transactional):
    made()
    other.execute("ALTER TABLE delayed_queue_schedule_run RENAME TO elsewhere")
    try:
        with caplog.at_level(logging.WARNING, "delayed_queue"):
            handled = handle(pass_over, "a", key(), "b", transactional=transactional)
    finally:
        other.execute("ALTER TABLE elsewhere RENAME TO delayed_queue_schedule_run")
    assert handled == ["a", key(), "b"]
    assert "event=run_not_recorded" in caplog.text
    assert not Message.objects.exists()


# Where operators see it


def test_o19_the_admin_shows_the_last_runs_and_links_failures(admin_client: Client) -> None:
    row = made()
    assert "No worker has finished a run yet." in page(admin_client, url(row))
    handle(pass_over, key(0))
    handle(reject, key(1))
    letter = f"/admin/delayed_queue/deadletter/?q={key(1).replace('/', '%2F')}"
    listed, detail = page(admin_client, SCHEDULES), page(admin_client, url(row))
    assert letter in listed
    assert letter in detail
    for words in ("2026-05-01", "2026-05-02", "web-1", "done", "dead", "Last runs", "Next runs"):
        assert words in detail, words
    assert DeadLetter.objects.get().key == key(1)


def test_o19_the_command_lists_the_last_run() -> None:
    made()
    handle(fail, key(), retry=HOUR)
    out = StringIO()
    call_command("installcron", "--list", "--format", "json", stdout=out)
    (found,) = [each for each in json.loads(out.getvalue()) if "nightly" in each["schedule"]]
    assert found["outcome"] == "failed"
    assert found["last"].startswith("2026-05-01 03:30")
    assert found["started"]
    assert found["finished"]
