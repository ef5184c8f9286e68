"""Bulk runs that several workers process, and that start at the same moment (O9)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import psycopg
import pytest

from delayed_queue.exceptions import RunInProgress
from delayed_queue.models import BulkRun, DeadLetter, Message
from delayed_queue.queue.bulk import BulkPlan, step, switch_run
from delayed_queue.queue.store.bulk import LOCK_RUN
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.support.factories import DeadLetterFactory

KIND = "orders|json"


@pytest.mark.parametrize("fingerprint", ["a", None])
def test_of_runs_over_the_same_letters_that_begin_together_one_begins(
    transactional_db: None, fingerprint: str | None
):
    DeadLetterFactory.create_batch(2, fingerprint="a")

    def begin() -> bool:
        try:
            return bool(BulkPlan("redrive", KIND, fingerprint, pace=1).start())
        except RunInProgress:
            return False

    assert Counter(together([begin] * 4)) == {True: 1, False: 3}
    assert BulkRun.objects.count() == 1


def test_workers_share_a_run_and_each_letter_is_had_once(transactional_db: None):
    DeadLetterFactory.create_batch(60)
    run_id = BulkPlan("redrive", KIND, pace=100_000).start()
    BulkRun.objects.filter(pk=run_id).update(pace=None)

    def work() -> int:
        turns = 0
        while BulkRun.objects.get(pk=run_id).state == "running":
            turns += step()
        return turns

    assert sum(together([work] * 3)) == 2
    run = BulkRun.objects.get(pk=run_id)
    assert (run.done, run.skipped) == (60, 0)
    assert (Message.objects.count(), DeadLetter.objects.count()) == (60, 0)


def test_a_run_under_lock_is_passed_over_and_a_pause_waits_for_its_batch(
    transactional_db: None, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
):
    DeadLetterFactory.create_batch(2)
    run_id = BulkPlan("redrive", KIND).start()
    other.execute("BEGIN")
    assert other.execute(LOCK_RUN, {"now": None}).fetchall()
    assert not step()
    with calling(partial(switch_run, run_id, "pause")) as pausing:
        wait_until_blocked(admin, pausing)
        other.execute("COMMIT")
        assert pausing.answer()
    assert not step()
    assert DeadLetter.objects.count() == 2
