"""Workers that are killed in the midst of their tasks: every task has its result, once."""

from __future__ import annotations

import os
import random
import signal
from functools import partial
from typing import Any

import pytest

from delayed_queue.models import Message
from delayed_queue.tasks.models import TaskResult
from tests import processes
from tests.processes import children_of, wait_until
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.parametrize(
    ("kills", "tasks"), [(3, 300), pytest.param(20, 2000, marks=pytest.mark.long)]
)
def test_every_task_ends_once_however_often_its_worker_is_killed(
    work: Any, backend: Any, kills: int, tasks: int
) -> None:
    keys = [f"key-{each}" for each in range(tasks)]
    half = tasks // 2
    backend.enqueue_many(work.settle, [(key,) for key in keys[:half]])
    paid = backend.enqueue_many(work.pay, [(key,) for key in keys[half:]])
    arguments = (
        "--queue",
        "default",
        "--processes",
        "2",
        "--concurrency",
        "2",
        "--batch-size",
        "20",
    )
    settings = {"DJANGO_SETTINGS_MODULE": "tests.tasks.settings"}
    with processes.worker(*arguments, **settings) as worker:
        for number in range(kills):
            wait_until(partial(have_ended, tasks * (number + 1) // (kills + 2)))
            os.kill(random.choice(children_of(worker)), signal.SIGKILL)
            wait_until(lambda: len(children_of(worker)) == 2)
        wait_until(lambda: not Message.objects.exists(), seconds=120)

    assert TaskResult.objects.filter(status="SUCCESSFUL").count() == tasks
    assert {row.key for row in Effect.objects.all()} == set(keys)
    # Of those that are transactional each effect is there once, whatever was killed.
    assert Effect.objects.filter(queue="pay").count() == len(paid)


def have_ended(count: int) -> bool:
    return TaskResult.objects.count() >= count
