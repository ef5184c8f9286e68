"""Retries, time limits, transactions, uniqueness and priorities of tasks (T7, T8)."""

from __future__ import annotations

import functools
import types
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import Groups, RetryPolicy
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.facade import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks import policy
from delayed_queue.tasks._api import InvalidTask, TaskResultStatus, task
from delayed_queue.tasks.models import TaskPriority, TaskResult
from delayed_queue.tasks.options import Options
from tests.support.processes import wait_until
from tests.support.running import running
from tests.tasks.conftest import configured, drained, worker_of_tasks
from tests.workerapp.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)


class TestRetries:
    def test_each_attempt_adds_its_error_until_the_last(self, work: Any) -> None:
        result = work.thrice.enqueue()
        drained()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert [each.traceback.split()[-1] for each in result.errors] == ["1", "2", "3"]
        assert result.attempts == 3

    def test_a_later_success_keeps_the_errors_before_it(self, work: Any) -> None:
        result = work.thrice.enqueue(2)
        drained()
        result.refresh()
        assert result.return_value == 2
        assert len(result.errors) == 1
        assert result.started_at <= result.last_attempted_at

    def test_between_attempts_it_is_ready(self, settings: Any, work: Any) -> None:
        settings.TASKS = configured(RETRY=RetryPolicy.ladder("1h"))
        result = work.fail.enqueue()
        drained()
        result.refresh()
        assert result.status == TaskResultStatus.READY
        assert len(result.errors) == result.attempts == 1

    def test_a_backoff_that_returns_none_ends_it(self, work: Any) -> None:
        result = work.hopeless.enqueue()
        drained()
        result.refresh()
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)

    def test_deliveries_that_crash_are_not_repeated_for_ever(self, work: Any) -> None:
        result = work.add.enqueue(1)
        Message.objects.update(attempts=10, lease_id="crashed", scheduled_at=1)
        drained()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert "crashed" in DeadLetter.objects.get().reason

    @pytest.mark.parametrize("name", ["slow", "aslow"])
    def test_what_takes_too_long_has_failed(self, work: Any, name: str) -> None:
        result = getattr(work, name).enqueue()
        drained()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert result.errors[0].exception_class_path.endswith("HandlerTimeout")


class TestRefusals:
    @pytest.mark.parametrize(
        ("said", "match"),
        [
            ({"max_attempts": 0}, "max_attempts=0"),
            ({"backoff": 3}, "backoff=3"),
            ({"timeout": -1}, "timeout=-1"),
            ({"retry": 3}, "retry=3"),
            ({"retry": RetryPolicy.never(), "max_attempts": 2}, "one or the other"),
            ({"unique": 3}, "unique=3"),
            ({"replace": True}, "without unique"),
            ({"transactional": True, "timeout": 3}, "transaction_timeout"),
        ],
    )
    def test_what_a_task_cannot_say(self, said: dict[str, Any], match: str) -> None:
        function = policy(**said)(types.FunctionType((lambda: None).__code__, globals(), "made"))
        function.__qualname__ = "made"
        with pytest.raises(InvalidTask, match=match):
            task(function)

    def test_a_slip_of_the_pen(self) -> None:
        with pytest.raises(InvalidConfiguration, match="Did you mean 'max_attempts'"):
            policy(max_atempts=3)
        with pytest.raises(InvalidConfiguration, match="below @task"):
            policy(max_attempts=3)(print)


class TestTransactions:
    def test_effects_result_and_removal_are_one_commit(self, work: Any) -> None:
        result = work.pay.enqueue("a")
        tally = drained()
        assert (tally.done, tally.lost) == (1, 0)
        result.refresh()
        assert result.return_value == "a"
        assert Effect.objects.count() == 1

    def test_a_failure_undoes_the_effects(self, work: Any) -> None:
        result = work.pay.enqueue("a", fails=True)
        drained()
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert not Effect.objects.exists()

    def test_what_was_taken_over_leaves_no_effect_and_no_result(self, work, other):
        """Another caller releases the message while its task runs."""
        result = work.pay.enqueue("a")
        function = work.pay.func

        @functools.wraps(function)
        def meanwhile(key: str, fails: bool = False) -> str:
            found: str = function(key, fails)
            other.execute('UPDATE delayed_queue SET "lockUuid" = NULL')
            return found

        object.__setattr__(work.pay, "func", meanwhile)
        try:
            queue = DelayedQueue("default")
            assert drained().lost == 1
        finally:
            object.__setattr__(work.pay, "func", function)
        assert queue.contains_message(result.id)
        assert not Effect.objects.exists()
        assert not TaskResult.objects.filter(status="SUCCESSFUL").exists()


class TestUniqueness:
    def test_one_of_a_name_lives(self, work: Any) -> None:
        first = work.once.enqueue("a", 1)
        assert work.once.enqueue("a", 2).id == first.id
        assert work.once.enqueue("b", 3).id != first.id
        drained()
        assert sorted(work.said) == [("a", 1), ("b", 3)]
        again = work.once.enqueue("a", 4)
        assert again.id != first.id
        assert work.once.get_result(again.id).status == TaskResultStatus.READY
        assert work.once.get_result(first.id).return_value == 1

    def test_over_priorities_too(self, work: Any) -> None:
        first = work.once.enqueue("a", 1)
        assert work.once.using(priority=5).enqueue("a", 2).id == first.id
        kept = work.latest.enqueue("a", value=1)
        assert work.latest.using(priority=5).enqueue("a", value=2).id == kept.id
        drained()
        assert ("a", 2) in work.said
        assert len(work.said) == 2

    def test_another_takes_its_place(self, work: Any) -> None:
        later = timezone.now() + timedelta(hours=1)
        first = work.latest.using(run_after=later).enqueue("a", value=1)
        second = work.latest.enqueue("a", value=2)
        assert second.id == first.id
        drained()
        first.refresh()
        assert first.return_value == 2
        assert work.said == [("a", 2)]

    def test_a_name_that_cannot_be_made(self, work: Any) -> None:
        with pytest.raises(InvalidTask, match="do not fit: missing a required argument: 'name'"):
            work.once.enqueue(value=1)


class TestPriorities:
    def test_the_higher_starts_first_and_within_one_the_earlier(self, work: Any) -> None:
        order = [0, 7, -3, 100, 7, 0, -100]
        for number, priority in enumerate(order):
            work.add.using(priority=priority).enqueue(number)
        drained(concurrency=1, batch_size=2)
        wanted = sorted(range(len(order)), key=lambda each: (-order[each], each))
        assert [each[0] for each in work.said] == wanted

    def test_a_deferred_one_does_not_overtake_before_its_time(self, work: Any) -> None:
        later = timezone.now() + timedelta(hours=1)
        result = work.add.using(priority=9, run_after=later).enqueue(1)
        work.add.enqueue(2)
        drained()
        assert [each[0] for each in work.said] == [2]
        found = work.add.get_result(result.id)
        assert (found.task.priority, found.status) == (9, TaskResultStatus.READY)

    def test_one_that_is_new_is_served_by_a_worker_that_runs(self, work: Any) -> None:
        with running(worker_of_tasks()):
            result = work.add.using(priority=9).enqueue(1)
            wait_until(lambda: work.add.get_result(result.id).is_finished)

    def test_a_pause_is_of_all(self, work: Any) -> None:
        DelayedQueue("default").pause()
        work.add.using(priority=9).enqueue(1)
        work.add.enqueue(2)
        assert drained().done == 0
        DelayedQueue("default").resume()
        assert drained().done == 2

    def test_a_queue_of_one_priority_asks_for_no_other(self, work: Any) -> None:
        work.add.enqueue(1)
        assert not TaskPriority.objects.exists()
        consumer = worker_of_tasks().consumers[0]
        assert consumer.begin_poll(1).kinds == ()


class TestGroups:
    def test_a_group_is_made_of_the_arguments_or_named(self, work: Any) -> None:
        grouped = work.add.using(group="customer-{0}")
        grouped.enqueue(1, 2)
        grouped.using(group="customer-42").enqueue(3, 4)
        grouped.get_backend().enqueue_many(grouped, [(5, 6), (7, 8)])
        work.add.enqueue(0, 0)
        groups = Message.objects.order_by("id").values_list("group", flat=True)
        assert list(groups) == ["customer-1", "customer-42", "customer-5", "customer-7", None]

    def test_limits_of_the_options_hold_for_the_tasks_of_a_queue(self, settings, work):
        settings.TASKS = configured(GROUPS={"default": Groups(concurrency=1)})
        for _ in range(10):
            for customer in (1, 2):
                work.serve.using(group="customer-{0}").enqueue(customer)
        with running(worker_of_tasks(concurrency=4)):
            wait_until(lambda: not Message.objects.exists())
        assert work.most_at_a_time == {1: 1, 2: 1}

    @pytest.mark.parametrize(
        ("said", "says"),
        [
            ({"group": "x{5}"}, "cannot be made"),
            ({"group": ""}, "return a non-empty text"),
            ({"group": "x" * 101}, "1 to 100"),
            ({"group": 5}, "write a template"),
            ({"group": "a", "priority": 5}, "one priority"),
        ],
    )
    def test_groups_that_cannot_be_are_refused(self, work, said, says):
        with pytest.raises(InvalidTask, match=says):
            work.add.using(**said).enqueue(1, 2)

    def test_options_that_are_no_limits_are_refused(self, settings: Any) -> None:
        with pytest.raises(InvalidConfiguration, match="GROUPS"):
            Options.of({"GROUPS": {"default": 2}})
