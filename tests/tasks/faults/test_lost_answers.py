"""Connections broken between a task's effect and its result: the result is true (T4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from pytest_django import Settings

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks.models import TaskResult
from delayed_queue.worker.engine.settling import Counts
from tests.support.aiming import COMMIT, EFFECT, Stage
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.running import running
from tests.tasks.conftest import configured, worker_of_tasks
from tests.workerapp.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)

RECORD = r"recorded AS"


@pytest.fixture
def work(queue: DelayedQueue, settings: Settings) -> Iterator[Any]:
    """The tasks of tests, over connections that the proxy breaks."""
    settings.TASKS = configured()
    from tests.tasks import work

    work.said.clear()
    yield work
    connection.close()


def run_cutting(proxy: Proxy, pattern: str, stage: Stage, **aim: Any) -> Counts:
    """Run the due tasks; break the connection of that statement once, at that stage."""
    aimed = proxy.aim_at(pattern, stage, **aim)
    worker = worker_of_tasks()
    with running(worker):
        aimed.wait()
        proxy.cut_aimed()
        wait_until(lambda: worker.counts.total)
    connection.close()
    return worker.counts


@pytest.mark.parametrize("stage", [Stage.UNSENT, Stage.EXECUTED, Stage.COMMITTED])
def test_a_result_is_written_once_whatever_its_connection_does(work, proxy, stage):
    """After the effect has committed: the task is not run again."""
    result = work.settle.enqueue("a")
    assert run_cutting(proxy, RECORD, stage) == Counts(done=1)

    found = work.settle.get_result(result.id)
    assert (found.status, found.return_value, found.attempts) == ("SUCCESSFUL", "a", 1)
    assert Effect.objects.count() == 1
    assert not Message.objects.exists()


@pytest.mark.parametrize("stage", [Stage.UNSENT, Stage.EXECUTED])
def test_a_failure_is_written_once_too(work: Any, proxy: Proxy, stage: Stage) -> None:
    result = work.fail.enqueue()
    assert run_cutting(proxy, r"held AS MATERIALIZED", stage) == Counts(dead=1)

    found = work.fail.get_result(result.id)
    assert (found.status, len(found.errors), found.attempts) == ("FAILED", 1, 1)
    assert DeadLetter.objects.get().key == result.id


@pytest.mark.parametrize(
    ("pattern", "stage"), [(EFFECT, Stage.UNSENT), (RECORD, Stage.UNSENT), (COMMIT, Stage.UNSENT)]
)
def test_a_transaction_that_is_undone_never_says_successful(work, proxy, pattern, stage):
    result = work.pay.enqueue("a")
    after = "" if pattern == EFFECT else EFFECT
    assert run_cutting(proxy, pattern, stage, after=after) == Counts(dead=1)

    assert work.pay.get_result(result.id).status == "FAILED"
    assert not Effect.objects.exists()
    assert not TaskResult.objects.filter(status="SUCCESSFUL").exists()


def test_a_transaction_that_was_committed_and_not_answered_says_what_it_did(work, proxy):
    """The worker counts it as failed; its message is gone, so the worker writes no result."""
    result = work.pay.enqueue("a")
    run_cutting(proxy, COMMIT, Stage.COMMITTED, after=EFFECT)

    found = work.pay.get_result(result.id)
    assert (found.status, found.return_value) == ("SUCCESSFUL", "a")
    assert Effect.objects.count() == 1
    assert not DeadLetter.objects.exists()
