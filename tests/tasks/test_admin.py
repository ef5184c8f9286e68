"""The page of tasks in the admin (T13, O20)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks import task_batch
from delayed_queue.tasks._api import TaskResultStatus
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import TaskQueue
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
    for query, found in (
        ("", 2), ("?status=FAILED", 1), (f"?q={result.id}", 1), ("?q=a.b", 0),
        ("?task=tests.tasks.work.add", 1), ("?task=a.b", 0),
    ):  # fmt: skip
        page = root.get(reverse(LIST) + query)
        assert page.context["cl"].result_count == found
    shown = root.get(reverse(DETAIL, args=[result.id])).content.decode()
    assert "41" in shown
    assert "42" in shown
    failed = TaskResult.objects.get(status="FAILED")
    assert "ValueError: why" in root.get(reverse(DETAIL, args=[failed.pk])).content.decode()


def test_b10_a_member_that_is_cancelled_counts_as_dropped(root: Client, work: Any) -> None:
    batch = task_batch(work.summarize, args=["a"])
    batch.enqueue(work.add, 1)
    assert "Cancelled 1 task" in act(root, "cancel_tasks", Message.objects.get())
    batch.close()
    headers = Message.objects.get().headers
    assert headers is not None
    assert headers["batch"]["dropped"] == 1


def test_a_task_says_when_what_happened(root: Client, work: Any) -> None:
    later = work.thrice.enqueue()
    drain()
    row = TaskResult.objects.get(pk=later.id)
    shown = text_of(root.get(reverse(DETAIL, args=[row.pk])))
    moments = ["enqueued", "first attempt started", "last attempt started", "finished"]
    places = [shown.index(each) for each in moments]
    assert places == sorted(places)
    assert f"{row.finished_at:%Y-%m-%d %H:%M:%S}" in shown
    assert "null" not in shown.partition("field-value")[2][:400]
    assert "Select task" not in text_of(root.get(reverse(LIST)))


def test_the_handler_of_a_queue_of_tasks_is_tasks(root: Client, work: Any) -> None:
    work.add.enqueue(1, other=41)
    shown = text_of(root.get(reverse("admin:delayed_queue_queues")))
    assert re.search(r'class="dq-handler">tasks<', shown)
    assert "Serving" not in shown


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
    assert "Made due 1 task" in act(root, "retry_now", row)
    assert not DeadLetter.objects.exists()
    assert Message.objects.get().key == str(row.pk)
    assert "Cancelled 1 task" in act(root, "cancel_tasks", row)
    assert not Message.objects.exists()
    assert "Enqueued again 1 task" in act(root, "run_again", row)
    assert Message.objects.get().key != str(row.pk)
    entries = list(LogEntry.objects.order_by("pk"))
    said = [each.change_message for each in entries]
    assert said == ["Made due.", "Cancelled.", "Enqueued again."]
    assert {(each.object_id, each.object_repr) for each in entries} == {(str(row.pk), str(row))}


def test_what_was_not_changed_is_not_logged(root: Client, work: Any) -> None:
    work.add.enqueue(1)
    drain()
    assert "because it has ended" in act(root, "cancel_tasks", TaskResult.objects.get())
    assert not LogEntry.objects.exists()


def test_the_page_of_a_task_has_buttons_for_what_can_be_done(root: Client, work: Any) -> None:
    work.fail.enqueue("why")
    drain()
    row = TaskResult.objects.get()
    url = reverse(DETAIL, args=[row.pk])
    page = root.get(url).content.decode()
    names = re.findall('name="action" value="([a-z_]+)"', page)
    assert names == ["retry_now", "run_again"]
    changelist = re.findall('<form method="post" action="([^"]+)"', page)[-1]
    posted = {"action": "retry_now", "_selected_action": str(row.pk), "origin": "detail"}
    answer = root.post(changelist, posted, follow=True)
    assert answer.redirect_chain[-1][0] == url
    assert "Made due 1 task" in answer.content.decode()


def test_the_page_of_a_task_has_no_buttons_for_those_who_may_only_look(
    client: Client, work: Any
) -> None:
    result = work.fail.enqueue("why")
    drain()
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_taskresult"))
    client.force_login(user)
    url = reverse(DETAIL, args=[result.id])
    assert 'name="action"' not in client.get(url).content.decode()


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


class TestUnderWay:
    """Waiting and running tasks, in front of those that have a result."""

    def test_one_list_shows_all_states_in_order(self, root: Client, work: Any) -> None:
        work.fail.enqueue()
        work.aadd.enqueue(5)
        drain()
        work.add.enqueue(1, other=987654)
        work.fail.using(priority=7).enqueue()
        work.tell.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("x" * 5000)
        assert TaskQueue("default", 0, "default").try_poll() is not None
        page = root.get(reverse(LIST))
        rows = [each.task.rpartition(".")[2] for each in page.context["cl"].result_list]
        assert (rows[:3], sorted(rows[3:])) == (["add", "fail", "tell"], ["aadd", "fail"])
        shown = text_of(page)
        assert all(each in shown for each in ("running", "waiting", "scheduled", "failed", "done"))
        assert "987654" not in shown

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("status=running", ["add"]), ("status=waiting", ["tell", "tell"]),
            ("status=waiting&task=tests.tasks.work.add", []),
            ("task=tests.tasks.work.tell", ["tell", "tell"]),
        ],
    )  # fmt: skip
    def test_filters(self, root: Client, work: Any, query: str, found: list[str]) -> None:
        work.add.enqueue(1)
        assert TaskQueue("default", 0, "default").try_poll() is not None
        work.tell.enqueue(1)
        work.tell.enqueue(2)
        assert found == listed(root, f"?{query}")
        assert root.get(reverse(LIST), {"status": "x"}).status_code == 302

    def test_one_is_shown_and_cancelled(self, root: Client, work: Any) -> None:
        result = work.add.enqueue(1, other=41)
        assert "41" in text_of(root.get(reverse(DETAIL, args=[result.id])))
        root.post(reverse(LIST), {"action": "cancel_tasks", "_selected_action": result.id})
        assert not Message.objects.exists()
        assert work.add.get_result(result.id).status == TaskResultStatus.FAILED
        assert "Cancelled" in LogEntry.objects.get().change_message

    def test_one_with_another_key_is_shown_and_cancelled(self, root: Client, work: Any) -> None:
        payload = {"task": "tests.tasks.work.add", "args": [4711]}
        TaskQueue("default", 0, "default").offer_or_update("tick", payload)
        row = Message.objects.get()
        assert "4711" in text_of(root.get(reverse(DETAIL, args=[row.pk])))
        assert "Cancelled 1 task" in act(root, "cancel_tasks", row)
        assert not Message.objects.exists()

    def test_messages_of_other_queues_are_no_tasks(self, root: Client, work: Any) -> None:
        DelayedQueue("elsewhere").offer_or_update("key", 1)
        message = Message.objects.get()
        assert root.get(reverse(DETAIL, args=[message.pk])).status_code == 302
        assert listed(root) == []
        TaskQueue("default", 0, "default").offer_or_update("no task", [1])
        assert listed(root) == [""]


class TestSearch:
    """By the beginning of an id, a part of a path, or a value of the arguments."""

    @pytest.fixture
    def tasks(self, work: Any) -> Any:
        done = work.echo.enqueue({"order": "straße-4711"})
        work.add.enqueue(1)
        drain()
        return done, work.echo.enqueue({"order": "straße-4712"})

    def test_each_finds_waiting_and_finished_ones(self, root: Client, tasks: Any) -> None:
        done, waiting = tasks
        for term, found in (
            (done.id, ["echo"]), (waiting.id[:-1], ["echo"]), ("work.echo", ["echo", "echo"]),
            ("straße-471", ["echo", "echo"]), ("4711", ["echo"]), ("nothing", []),
            ("0" * 8, []), ('"', []), ("%", []),
        ):  # fmt: skip
            assert listed(root, f"?{urlencode({'q': term})}") == found, term

    def test_arguments_need_the_permission(self, client: Client, tasks: Any) -> None:
        user = User.objects.create_user("clerk", is_staff=True)
        user.user_permissions.add(Permission.objects.get(codename="view_taskresult"))
        client.force_login(user)
        assert listed(client, "?q=4711") == listed(client, "?q=4712") == []
        assert listed(client, "?q=echo") == ["echo", "echo"]


class TestCharts:
    def test_a_task_has_charts_of_its_results(self, root: Client, work: Any) -> None:
        for each in range(3):
            work.fail.enqueue(str(each))
        drain()
        page = root.get(reverse(LIST), {"task": "tests.tasks.work.fail"})
        finished, times = page.context["figures"]
        assert [name for name, *_ in finished["legend"]] == ["done", "failed"]
        assert finished["legend"][1][2] == "0.2"
        assert times["legend"][0][2].endswith(("ms", "s"))
        assert root.get(reverse(LIST)).context["figures"] == []


def listed(client: Client, query: str = "") -> list[str]:
    """Return the names of the tasks that the list shows."""
    rows = client.get(reverse(LIST) + query).context["cl"].result_list
    return [each.task.rpartition(".")[2] for each in rows]


def text_of(page: Any) -> str:
    return re.sub(r"<wbr>|&#8203;|\u200b", "", page.content.decode())
