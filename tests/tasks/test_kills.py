"""Workers killed in the middle of their tasks: each task has one result (T4, T12)."""

from __future__ import annotations

import json
import os
import random
import signal
from functools import partial
from typing import Any

import pytest

from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks.models import TaskResult
from tests.support import processes
from tests.support.processes import children_of, wait_until
from tests.workerapp.models import Effect

TWO = ("--queue", "default", "--processes", "2", "--concurrency", "2")
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.tasks.settings"}
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.parametrize(
    ("kills", "tasks"), [(3, 300), pytest.param(20, 2000, marks=pytest.mark.long)]
)
def test_every_task_ends_once_however_often_its_worker_is_killed(work, backend, kills, tasks):
    keys = [f"key-{each}" for each in range(tasks)]
    half = tasks // 2
    backend.enqueue_many(work.settle, [(key,) for key in keys[:half]])
    paid = backend.enqueue_many(work.pay, [(key,) for key in keys[half:]])
    # Messages whose claim was lost with a killed process wait for the lease to end.
    with processes.worker(*TWO, "--batch-size", "20", "--lease", "5", **SETTINGS) as worker:
        for number in range(kills):
            wait_until(partial(have_ended, tasks * (number + 1) // (kills + 2)))
            os.kill(random.choice(children_of(worker)), signal.SIGKILL)
            wait_until(lambda: len(children_of(worker)) == 2)
        wait_until(lambda: not Message.objects.exists(), seconds=120)

    results = list(TaskResult.objects.all())
    assert [row.status for row in results] == ["SUCCESSFUL"] * tasks
    # Each result belongs to its own run: its own argument, by a worker, in this order.
    for row in results:
        assert json.loads(bytes(row.payload))["args"] == [row.return_value]
        # A kill counts as an attempt, and leaves no other record.
        assert row.worker_ids[-1]
        assert not any(row.worker_ids[:-1])
        assert row.enqueued_at <= row.started_at <= row.finished_at
    assert {row.key for row in Effect.objects.all()} == set(keys)
    # Each transactional task has one effect, with any number of kills.
    assert Effect.objects.filter(queue="pay").count() == len(paid)


def test_a_task_that_kills_its_worker_fails_and_no_other(work: Any, backend: Any) -> None:
    before = backend.enqueue_many(work.settle, [(f"before-{each}",) for each in range(10)])
    poison = work.die.enqueue()
    behind = backend.enqueue_many(work.settle, [(f"behind-{each}",) for each in range(10)])
    with processes.worker(*TWO, "--lease", "0.5", **SETTINGS):
        wait_until(lambda: not Message.objects.exists(), seconds=180)

    for each in (*before, *behind):
        found = backend.get_result(each.id)
        assert (found.status, found.return_value) == ("SUCCESSFUL", each.args[0])
    found = backend.get_result(poison.id)
    assert found.status == "FAILED"
    assert "crashed" in found.errors[-1].traceback
    assert DeadLetter.objects.get().key == poison.id


def have_ended(count: int) -> bool:
    return TaskResult.objects.count() >= count
