"""A task result that the database refuses affects that task alone (W19)."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue.models import Message
from delayed_queue.tasks._api import TaskResultStatus
from tests.support.processes import wait_until
from tests.support.refusing import refusing
from tests.support.running import running
from tests.tasks.conftest import worker_of_tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


@pytest.mark.parametrize("name", ["add", "fail"])
def test_the_results_of_other_tasks_are_written(work: Any, name: str) -> None:
    others = [work.add.enqueue(each) for each in range(10)]
    refused = getattr(work, name).enqueue(77)
    others += [work.add.enqueue(each) for each in range(10)]
    when = f"NEW.id = '{refused.id}'"
    with (
        refusing("INSERT OR UPDATE", when, "delayed_queue_task_result"),
        running(worker_of_tasks()),
    ):
        wait_until(lambda: Message.objects.count() == 1)
        wait_until(lambda: Message.objects.filter(lease_id=None, attempts=1).exists())
    for each in others:
        each.refresh()
        assert each.status == TaskResultStatus.SUCCESSFUL
