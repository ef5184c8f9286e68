"""The factories make rows that queues, schedules, tasks and the admin accept (R7)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from django.db import connection
from django.urls import reverse

from delayed_queue import DelayedQueue, OfferOutcome
from delayed_queue.cron.keeper import CronKeeper
from delayed_queue.models import Message
from delayed_queue.tasks._api import TaskResultStatus, task_backends
from delayed_queue.tasks.keeping import keep_days
from delayed_queue.testing.factories import (
    DeadLetterFactory,
    MessageFactory,
    ScheduleFactory,
    TaskResultFactory,
)
from tests.support.missing import not_installed

FACTORIES: Any = (MessageFactory, DeadLetterFactory, ScheduleFactory, TaskResultFactory)

pytestmark = pytest.mark.django_db


def test_a_message_is_delivered() -> None:
    MessageFactory.create(queue="mail", key="a", payload={"to": "b@example.org"})
    found = DelayedQueue("mail").try_poll()
    assert found is not None
    assert (found.key, found.payload, found.attempt) == ("a", {"to": "b@example.org"}, 1)
    assert found.acknowledge()


@pytest.mark.parametrize(("trait", "attempt"), [("scheduled", 0), ("leased", 0), ("expired", 2)])
def test_only_an_expired_lease_is_delivered_again(trait: str, attempt: int) -> None:
    MessageFactory.create(**{trait: True})
    found = DelayedQueue("orders").try_poll()
    assert (found.attempt if found else 0) == attempt


def test_a_dead_letter_is_redriven() -> None:
    letter = DeadLetterFactory.create()
    queue = DelayedQueue("orders")
    assert queue.redrive([letter.pk]) == {letter.pk: OfferOutcome.CREATED}
    found = queue.try_poll()
    assert found is not None
    assert (found.key, found.payload) == (letter.key, {"total": 12})


def test_a_schedule_is_installed() -> None:
    row = ScheduleFactory.create(payload={"n": 1})
    (kept,) = CronKeeper(entries=[]).check()
    assert (kept.name, kept.error) == (f"orders|json/{row.key_prefix}", "")
    assert Message.objects.filter(kind="orders|json").exists()


def test_a_result_is_found_and_kept_by_its_day(settings: Any) -> None:
    settings.TASKS = {
        "default": {"BACKEND": "delayed_queue.tasks.DelayedQueueBackend", "QUEUES": ["default"]}
    }
    row = TaskResultFactory.create(args=[1], return_value=3)
    failed = TaskResultFactory.create(failed=True)
    assert keep_days("default")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM delayed_queue_task_result_rest")
        assert cursor.fetchone() == (0,)
    found = task_backends["default"].get_result(str(row.pk))
    assert (found.status, found.args, found.return_value) == (TaskResultStatus.SUCCESSFUL, [1], 3)
    assert (found.enqueued_at - row.scheduled_at).total_seconds() < 0.001
    (error,) = task_backends["default"].get_result(str(failed.pk)).errors
    assert error.exception_class is ValueError


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_admin_shows_every_row(factory: Any, admin_client: Any) -> None:
    meta = factory.create()._meta
    page = admin_client.get(reverse(f"admin:{meta.app_label}_{meta.model_name}_changelist"))
    assert page.status_code == 200


def test_without_factory_boy_the_import_names_it() -> None:
    module = "delayed_queue.testing.factories"
    with not_installed("factory", module), pytest.raises(ImportError, match="factory_boy:"):
        import_module(module)
