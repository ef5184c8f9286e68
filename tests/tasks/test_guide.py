"""The guide of tasks: its code runs as that of a project, with the documented results (T1)."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from delayed_queue.tasks.testing import drain
from tests.support import documents
from tests.support.documents import DOCS

GUIDE = DOCS / "guides/tasks.md"


@pytest.mark.django_db
def test_its_code_runs_and_its_tasks_do(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("guide_of_tasks")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # where tasks are found by their path
    page = vars(module)
    page["INSTALLED_APPS"] = []
    for block in documents.blocks(GUIDE, "py"):
        source = "\n" * (block.line - 1) + block.text
        exec(compile(source, str(block), "exec"), page)  # noqa: S102 - our own page
        settings.TASKS = page["TASKS"]
    results = [page["result"], page["charge"].enqueue(1), page["export"].enqueue(3)]
    # The others are the three members of the batch, and the task that follows.
    assert drain().handled == 7
    for each in results:
        each.refresh()
    assert [each.status for each in results] == ["SUCCESSFUL"] * 3
    assert results[0].return_value == "receipt of 7"
    assert results[2].metadata
    batch = page["batch"]
    batch.then.refresh()
    assert batch.then.status == "SUCCESSFUL"
