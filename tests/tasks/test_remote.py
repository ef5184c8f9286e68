"""``POST /v1/tasks``: remote tasks, for tokens that name them (T12)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from delayed_queue.models import Message
from delayed_queue.tasks._api import TaskResultStatus
from tests.http.api.calls import errors_of, post
from tests.http.api.conftest import forgetful, make_client, new_process
from tests.tasks.conftest import drained

__all__ = ["forgetful", "make_client", "new_process"]
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.http.api.urls"),
    pytest.mark.usefixtures("new_process"),
    pytest.mark.usefixtures("both_paths"),
]
RECEIVE = "tests.tasks.work.receive"


@pytest.fixture
def caller(make_client: Callable[..., Client], work: Any) -> Client:
    return make_client(verbs=["add"], topics=["task:tests.tasks.work.*"])


def test_a_task_is_enqueued_and_run(caller: Client, work: Any) -> None:
    answer = post(caller, "/tasks", {"task": RECEIVE, "args": [7], "kwargs": {"gift": True}})
    assert answer.status_code == 202
    said = answer.json()
    assert said == {"taskId": said["taskId"], "task": RECEIVE, "queue": "default"}
    post(caller, "/tasks", {"task": f"{RECEIVE}_with_context", "args": [8]})
    assert drained().done == 2
    assert work.receive.get_result(said["taskId"]).return_value == "order 7 as a gift"


def test_it_waits_for_its_time(caller: Client, work: Any) -> None:
    later = (timezone.now() + timedelta(hours=1)).isoformat()
    for when in ({"delay": 3600}, {"runAt": later}):
        said = post(caller, "/tasks", {"task": RECEIVE, "args": [7], **when}).json()
        result = work.receive.get_result(said["taskId"])
        assert result.status == TaskResultStatus.READY
        assert abs(result.task.run_after - timezone.now() - timedelta(hours=1)) < timedelta(
            minutes=1
        )
    assert drained().done == 0


@pytest.mark.parametrize(
    "name",
    ["tests.tasks.work.add", "tests.tasks.work.said", "tests.tasks.work.none", "tests.tasks.work."],
)
def test_a_task_that_does_not_say_so_is_not_served(caller: Client, name: str) -> None:
    answer = post(caller, "/tasks", {"task": name, "args": [1]})
    assert (answer.status_code, answer.json()["code"]) == (403, "task_not_served")
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("verbs", "topics"),
    [
        (["add"], ["default"]), (["add"], ["tests.tasks.work.*"]), (["add"], ["task:shop.*"]),
        (["read", "consume"], ["*"]),
    ],
)  # fmt: skip
def test_a_token_must_name_it(make_client, work, verbs, topics):
    answer = post(make_client(verbs=verbs, topics=topics), "/tasks", {"task": RECEIVE})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert post(Client(), "/tasks", {"task": RECEIVE}).status_code == 401
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, "task"), ({"task": 1}, "task"), ({"task": RECEIVE, "args": {}}, "args"),
        ({"task": RECEIVE, "kwargs": []}, "kwargs"), ({"task": RECEIVE, "args": []}, "args"),
        ({"task": RECEIVE, "args": [1, 2]}, "args"), ({"task": RECEIVE, "arg": [1]}, "arg"),
        ({"task": RECEIVE, "args": [1], "delay": -1}, "delay"),
        ({"task": RECEIVE, "args": [1], "delay": 1, "runAt": "2030-01-01T00:00:00Z"}, "runAt"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_field(caller: Client, fields: dict[str, Any], path: str) -> None:
    answer = post(caller, "/tasks", fields)
    assert answer.status_code == 400
    assert ("body", path) in errors_of(answer)
    assert not Message.objects.exists()


def test_a_request_with_a_key_is_done_once(caller: Client) -> None:
    key = {"Idempotency-Key": "k"}
    first, again = (post(caller, "/tasks", {"task": RECEIVE, "args": [7]}, **key) for _ in range(2))
    assert first.json() == again.json()
    assert again.headers["Idempotency-Replayed"] == "true"
    other = post(caller, "/tasks", {"task": RECEIVE, "args": [8]}, **key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert Message.objects.count() == 1


def test_without_tasks_there_are_none(caller: Client, settings: Any) -> None:
    settings.TASKS = {}
    answer = post(caller, "/tasks", {"task": RECEIVE, "args": [7]})
    assert (answer.status_code, answer.json()["code"]) == (403, "task_not_served")
