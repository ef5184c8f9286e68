"""What tests of projects are given, and schedules of tasks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from delayed_queue.cron.registry import crontab
from delayed_queue.exceptions import HandlerNotFound, InvalidConfiguration
from delayed_queue.handlers import registry
from delayed_queue.models import DeadLetter
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.tasks import cron
from delayed_queue.tasks._api import TaskResultStatus
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.testing import drain
from tests.tasks.conftest import configured, drained


@pytest.mark.django_db
class TestDrain:
    """In a transaction that is never committed."""

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

    def test_the_immediate_mode_takes_the_same_way(self, settings: Any, work: Any) -> None:
        settings.TASKS = configured()
        settings.TASKS["default"]["BACKEND"] = "delayed_queue.tasks.testing.ImmediateBackend"
        settings.TASKS = dict(settings.TASKS)
        assert work.add.enqueue(1, 2).return_value == 3
        assert TaskResult.objects.count() == 1


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

    def test_what_is_no_task(self) -> None:
        with pytest.raises(InvalidConfiguration, match="above @task"):
            cron("* * * * *")(print)
