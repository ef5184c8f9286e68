"""A bulk run carried out by workers that are killed: each letter once, none lost."""

from __future__ import annotations

import signal
from collections import Counter

import pytest

from delayed_queue.messages import to_milliseconds
from delayed_queue.models import BulkRun, DeadLetter, Message
from delayed_queue.queue.bulk import BulkPlan
from tests.factories import DeadLetterFactory, from_now
from tests.faults.ledger import effects
from tests.processes import wait_until, worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

LETTERS = 4_000
KILLS = 4


def done(run_id: int) -> int:
    return BulkRun.objects.get(pk=run_id).done


def test_each_letter_is_redriven_once_through_kills_of_the_workers() -> None:
    """At a pace, so that each worker dies in the middle of it; nobody handles what comes back."""
    DeadLetter.objects.bulk_create(
        DeadLetterFactory.build(kind="bulk|json", key=f"key-{each}", died_at=from_now(seconds=-1))
        for each in range(LETTERS)
    )
    run_id = BulkPlan("redrive", "bulk|json", pace=400).start()
    for kill in range(KILLS):
        with worker("--queue", "ledger", "--processes", "0") as process:
            reached = (kill + 1) * 400
            wait_until(lambda: done(run_id) >= reached, 30)  # noqa: B023 - called at once
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        # In one statement's view: nothing is in both tables, nothing in neither.
        assert DeadLetter.objects.count() + Message.objects.count() == LETTERS
    BulkRun.objects.filter(pk=run_id).update(pace=None)
    with worker("--queue", "ledger", "--processes", "0"):
        wait_until(lambda: BulkRun.objects.get(pk=run_id).state == "done", 60)

    run = BulkRun.objects.get(pk=run_id)
    assert (run.done, run.skipped, DeadLetter.objects.count()) == (LETTERS, 0, 0)
    keys = Message.objects.values_list("key", flat=True)
    assert Counter(keys) == Counter(f"key-{each}" for each in range(LETTERS))


def test_what_is_redriven_is_handled_once_by_the_workers_that_redrive_it() -> None:
    DeadLetter.objects.bulk_create(
        DeadLetterFactory.build(kind="ledger|json", key=f"key-{each}", payload=b"1",
                                died_at=from_now(seconds=-1))
        for each in range(300)
    )  # fmt: skip
    run_id = BulkPlan("redrive", "ledger|json", canary=5).start()
    with worker("--queue", "ledger", "--processes", "0"):
        wait_until(lambda: BulkRun.objects.get(pk=run_id).state == "done", 60)
        wait_until(lambda: not Message.objects.exists(), 60)
    assert effects() == Counter(f"key-{each}" for each in range(300))
    run = BulkRun.objects.get(pk=run_id)
    assert (run.done, run.is_canary_over) == (300, True)
    assert to_milliseconds(run.created_at) <= to_milliseconds(run.ended_at)
