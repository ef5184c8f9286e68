"""A bulk run by workers that are killed: each letter once, none lost (O9)."""

from __future__ import annotations

import signal
from collections import Counter
from random import Random

import pytest
from django.db import connection

from delayed_queue.messages import to_milliseconds
from delayed_queue.models import BulkRun, DeadLetter, Message, Worker
from delayed_queue.queue.bulk import BulkPlan
from tests.support.factories import DeadLetterFactory, from_now
from tests.support.ledger import effects
from tests.support.processes import wait_until, worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

FILL = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt"
)
SELECT
    'bulk|json', 'key-' || n, '1', 1, 'no', 0, 0, extract(epoch FROM now()) * 1000 - 2000000 + n
FROM generate_series(1, %s) AS n
"""
# In one snapshot no letter is in both tables, none in neither, and no key twice in one.
AUDIT = """
SELECT
    (SELECT count(*) FROM delayed_queue_dead_letter) + (SELECT count(*) FROM delayed_queue),
    (SELECT count(DISTINCT "pKey") FROM (
        SELECT "pKey" FROM delayed_queue_dead_letter UNION ALL SELECT "pKey" FROM delayed_queue
    ) AS everywhere)
"""


def audit() -> tuple[int, int]:
    with connection.cursor() as cursor:
        cursor.execute(AUDIT)
        there, keys = cursor.fetchone()
        return there, keys


def done(run_id: int) -> int:
    return BulkRun.objects.get(pk=run_id).done


@pytest.mark.parametrize(
    ("letters", "kills", "pace"),
    [(4_000, 4, 400), pytest.param(1_000_000, 20, None, marks=pytest.mark.long)],
)
def test_each_letter_is_redriven_once_through_kills_of_the_workers(letters, kills, pace):
    """Each worker dies in the middle of it; no worker handles the redriven messages."""
    with connection.cursor() as cursor:
        cursor.execute(FILL, [letters])
    run_id = BulkPlan("redrive", "bulk|json", pace=pace).start()
    late = DeadLetterFactory.create(kind="bulk|json", key="died later", died_at=from_now(days=-9))
    most = letters * 9 // 10 if pace is None else pace * kills
    random = Random(20)
    for reached in sorted(random.randrange(1, most) for _ in range(kills)):
        with worker("--queue", "ledger", "--processes", "0") as process:
            wait_until(lambda: done(run_id) >= reached, 300)  # noqa: B023 - called at once
            process.send_signal(signal.SIGKILL)
            process.wait(10)
        assert audit() == (letters + 1, letters + 1)
    BulkRun.objects.filter(pk=run_id).update(pace=None)
    with worker("--queue", "ledger", "--processes", "0"):
        wait_until(lambda: BulkRun.objects.get(pk=run_id).state == "done", 300)

    run = BulkRun.objects.get(pk=run_id)
    assert (run.done, run.skipped, list(DeadLetter.objects.all())) == (letters, 0, [late])
    assert audit() == (letters + 1, letters + 1)


def test_a_run_begins_at_once_in_a_worker_that_idles() -> None:
    with worker("--queue", "ledger", "--processes", "0"):
        wait_until(Worker.objects.exists, 30)
        # Well before the next heartbeat, which would also find it.
        DeadLetterFactory.create(kind="bulk|json")
        run_id = BulkPlan("drop", "bulk|json").start()
        wait_until(lambda: BulkRun.objects.get(pk=run_id).state == "done", 5)


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
