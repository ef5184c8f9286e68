"""The page of tasks in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.testing import drain

pytestmark = pytest.mark.django_db
LIST = "admin:delayed_queue_tasks_taskresult_changelist"
DETAIL = "admin:delayed_queue_tasks_taskresult_change"


@pytest.fixture
def root(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("root"))
    return client


def act(client: Client, action: str, *rows: Any) -> str:
    answer = client.post(
        reverse(LIST), {"action": action, "_selected_action": [str(each.pk) for each in rows]},
        follow=True,
    )  # fmt: skip
    return answer.content.decode()


def test_tasks_are_listed_found_and_shown(root: Client, work: Any) -> None:
    result = work.add.enqueue(1, other=41)
    work.fail.enqueue("why")
    drain()
    for query, found in (("", 2), ("?status=FAILED", 1), (f"?q={result.id}", 1), ("?q=a.b", 0)):
        page = root.get(reverse(LIST) + query)
        assert page.context["cl"].result_count == found
    shown = root.get(reverse(DETAIL, args=[result.id])).content.decode()
    assert "41" in shown
    assert "42" in shown
    failed = TaskResult.objects.get(status="FAILED")
    assert "ValueError: why" in root.get(reverse(DETAIL, args=[failed.pk])).content.decode()


def test_arguments_are_for_those_who_may_see_payloads(client: Client, work: Any) -> None:
    result = work.add.enqueue(1, other=987654)
    drain()
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_taskresult"))
    client.force_login(user)
    page = client.get(reverse(DETAIL, args=[result.id])).content.decode()
    assert "tests.tasks.work.add" in page
    assert "98765" not in page
    row = TaskResult.objects.get()
    act(client, "run_again", row)
    assert not Message.objects.exists()


def test_run_again_retry_and_cancel(root: Client, work: Any) -> None:
    work.fail.enqueue("why")
    drain()
    row = TaskResult.objects.get()
    assert "1 of 1 to be run now" in act(root, "retry_now", row)
    assert not DeadLetter.objects.exists()
    assert Message.objects.get().key == str(row.pk)
    assert "1 of 1 cancelled" in act(root, "cancel_tasks", row)
    assert not Message.objects.exists()
    assert "1 of 1 enqueued again" in act(root, "run_again", row)
    assert Message.objects.get().key != str(row.pk)


def test_a_task_that_is_gone_says_so(
    root: Client, work: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.add.enqueue(1)
    drain()
    monkeypatch.delattr(work, "add")
    assert "cannot be imported" in act(root, "run_again", TaskResult.objects.get())


def test_a_list_looks_at_a_page(
    root: Client, work: Any, django_assert_max_num_queries: Any
) -> None:
    for each in range(60):
        work.add.enqueue(each)
    drain()
    with django_assert_max_num_queries(8):
        root.get(reverse(LIST))
