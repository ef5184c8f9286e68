"""Test helpers for projects, and schedules of tasks (T14)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.messages import WARNING, get_messages
from django.core.management import call_command
from django.core.management.commands import migrate
from django.db import connection, connections
from django.test import Client
from django.utils import timezone

from delayed_queue.cron.registry import crontab
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import registry
from delayed_queue.models import DeadLetter
from delayed_queue.tasks import cron
from delayed_queue.tasks._api import TaskResultStatus, task_backends
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.testing import drain
from tests.cron.schedules import FORM, SCHEDULES, errors
from tests.support.processes import wait_until
from tests.support.running import running
from tests.tasks.conftest import BACKEND, QUEUES, configured, drained, worker_of_tasks


@pytest.mark.django_db
class TestDrain:
    """In an uncommitted transaction."""

    def test_it_runs_what_was_enqueued(self, work: Any) -> None:
        results = [each.enqueue(2) for each in (work.add, work.aadd, work.fail)]
        urgent = work.add.using(priority=3, queue_name="second").enqueue(5)
        found = drain()
        assert connection.in_atomic_block
        assert (found.handled, found.failed) == (3, 1)
        assert isinstance(found.errors[0], ValueError)
        for each in (*results, urgent):
            each.refresh()
        ends = [each.status for each in results]
        assert ends == [TaskResultStatus.SUCCESSFUL] * 2 + [TaskResultStatus.FAILED]
        assert urgent.return_value == 5
        assert DeadLetter.objects.count() == 1

    def test_retries_transactions_and_snoozes_are_as_in_a_worker(self, work: Any) -> None:
        thrice, paid = work.thrice.enqueue(), work.pay.enqueue("a", fails=True)
        assert drain().failed == 4
        work.said.clear()
        work.answer.enqueue("snooze")
        assert drain().snoozed == 1
        thrice.refresh()
        paid.refresh()
        assert len(thrice.errors) == 3
        assert paid.status == TaskResultStatus.FAILED

    def test_of_a_queue_by_name(self, work: Any) -> None:
        work.add.enqueue(1)
        assert drain("second").delivered == 0
        with pytest.raises(HandlerNotFound, match="Did you mean 'second'"):
            drain("secnd")


@pytest.fixture
def second(transactional_db: None, settings: Any) -> Iterator[Any]:
    """A backend with another database: a schema with its own tables."""
    options = {"options": "-c search_path=second"}
    connections.databases["second"] = connections.databases["default"] | {"OPTIONS": options}
    settings.TASKS = configured() | {
        "second": {"BACKEND": BACKEND, "QUEUES": QUEUES, "OPTIONS": {"DATABASE": "second"}}
    }
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA second")
    # A separate connection: tests block new connections of Django.
    connections["second"].connect()
    call_command(migrate.Command(), database="second", verbosity=0)
    try:
        yield task_backends["second"]
    finally:
        connections["second"].close()
        del connections["second"], connections.databases["second"]
        with connection.cursor() as cursor:
            cursor.execute("DROP SCHEMA second CASCADE")


def test_tasks_of_each_database_are_run(work: Any, second: Any) -> None:
    here, there = work.add.enqueue(1), work.add.using(backend="second").enqueue(2)
    assert drain(using="second").handled == 1
    assert drain().handled == 1
    here.refresh()
    there.refresh()
    assert (here.return_value, there.return_value) == (1, 2)


@pytest.mark.django_db
class TestImmediately:
    """The task runs when it is enqueued, as with Django's immediate backend."""

    @pytest.fixture
    def backend(self, settings: Any) -> Any:
        named = "delayed_queue.tasks.testing.ImmediateBackend"
        settings.TASKS = {"default": configured()["default"] | {"BACKEND": named}}
        return task_backends["default"]

    def test_a_task_takes_the_same_way_as_in_a_worker(self, work: Any) -> None:
        assert work.add.enqueue(1, 2).return_value == 3
        assert TaskResult.objects.count() == 1

    def test_many_are_run_before_the_call_returns(self, work: Any, backend: Any) -> None:
        results = backend.enqueue_many(work.add, [(1, 2), {"one": 3}, 4])
        assert [each.return_value for each in results] == [3, 3, 4]
        assert [each.status for each in backend.enqueue_many(work.afail, ["a", "b"])] == [
            TaskResultStatus.FAILED,
            TaskResultStatus.FAILED,
        ]
        assert list(backend.enqueue_many(work.add, [])) == []

    def test_a_coroutine_enqueues_many(self, work: Any, backend: Any) -> None:
        results = async_to_sync(backend.aenqueue_many)(work.aadd, [1, 2])
        assert [each.return_value for each in results] == [1, 2]

    def test_those_of_later_wait(self, work: Any, backend: Any) -> None:
        later = work.add.using(run_after=timezone.now() + timedelta(hours=1))
        found = [later.enqueue(1), *backend.enqueue_many(later, [2, 3])]
        assert {each.status for each in found} == {TaskResultStatus.READY}
        assert work.said == []


@pytest.mark.django_db(transaction=True)
class TestSchedules:
    @pytest.fixture
    def entry(self, work: Any) -> Iterator[Any]:
        assert cron("*/5 * * * *", args=[4])(work.add) is work.add
        (entry,) = [each for each in crontab if each.key_prefix == "tests.tasks.work.add"]
        yield entry
        crontab.remove(entry)

    def test_a_tick_enqueues_the_task(self, work: Any, entry: Any) -> None:
        assert registry.lack_of(entry.queue, entry.kind) == ""
        payload = entry.generate(datetime.now(UTC))
        DelayedQueue(entry.queue).offer_or_update(f"{entry.key_prefix}/tick", payload)
        drained()
        assert work.said[0][0] == 4
        assert TaskResult.objects.get().status == "SUCCESSFUL"

    def test_an_operator_s_schedule_enqueues_it_at_real_ticks(self, admin_client, work):
        asked = {"task": "tests.tasks.work.add", "args": [4], "kwargs": {"other": 38}}
        form = FORM | {"type": "periodic", "expression": "1s", "timezone": "", "queue": "default"}
        response = admin_client.post(f"{SCHEDULES}add/", form | {"payload": json.dumps(asked)})
        assert response.status_code == 302, errors(response)
        assert not [each for each in get_messages(response.wsgi_request) if each.level == WARNING]
        with running(worker_of_tasks(cron=True)):
            wait_until(lambda: TaskResult.objects.filter(status="SUCCESSFUL").count() > 1)
        rows = TaskResult.objects.order_by("id")
        assert {(row.task, row.return_value) for row in rows} == {("tests.tasks.work.add", 42)}
        assert work.add.get_result(str(rows[0].pk)).is_finished

    @pytest.mark.parametrize(
        ("payload", "said"),
        [
            ([1], "a dict with 'task'"),
            ({"task": "tests.tasks.work.ad"}, "'tests.tasks.work.ad' cannot be imported"),
            ({"task": "tests.tasks.work.said"}, "is a list, not a task"),
            ({"task": "tests.tasks.work.add", "args": [1, 2, 3]}, "do not fit: too many"),
            ({"task": "tests.tasks.work.add", "args": 1}, "do not fit"),
            ({"task": "tests.tasks.work.add", "backend": "elsewhere"}, "no backend 'elsewhere'"),
        ],
    )
    def test_an_operator_s_schedule_of_what_cannot_run_is_refused(
        self, admin_client: Client, work: Any, payload: Any, said: str
    ) -> None:
        form = FORM | {"queue": "default", "payload": json.dumps(payload)}
        found = errors(admin_client.post(f"{SCHEDULES}add/", form))
        assert list(found) == ["payload"]
        assert said in found["payload"][0]

    def test_what_is_no_task(self) -> None:
        with pytest.raises(InvalidConfiguration, match="above @task"):
            cron("* * * * *")(print)
