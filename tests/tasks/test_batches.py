"""Batches of tasks: the task that follows, and what counts (B7 to B13)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.utils import timezone

from delayed_queue.exceptions import BatchClosed, InvalidConfiguration, InvalidMessage
from delayed_queue.models import DeadLetter, Message, StoredBatch
from delayed_queue.tasks import join_task_batch, task_batch
from delayed_queue.tasks._api import InvalidTask, task_backends
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import TaskQueue
from delayed_queue.tasks.testing import drain
from tests.support.processes import wait_until
from tests.support.running import running
from tests.tasks.conftest import configured, drained, worker_of_tasks

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


def run_by_a_worker() -> None:
    drained()


def run_by_a_test() -> None:
    drain()


by_both = pytest.mark.parametrize("run", [run_by_a_worker, run_by_a_test])


def batch_of(work: Any, **options: Any) -> Any:
    return task_batch(then=work.summarize.using(queue_name="second"), args=["report"], **options)


def let_expire(*results: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            'UPDATE delayed_queue SET "expiresAt" = "createdAt" - 1 WHERE "pKey" = ANY (%s)',
            [[each.id for each in results]],
        )


def counts(batch: Any) -> dict[str, int]:
    """Return what the task that followed has received, without empty counts."""
    drain()
    found = batch.then.task.get_result(batch.then.id)
    name, header = found.return_value
    assert name == "report"
    assert header.pop("id") == batch.id
    assert not StoredBatch.objects.exists()
    return {key: value for key, value in header.items() if value}


class TestEnds:
    @by_both
    def test_b8_the_task_then_runs_once_behind_all_members(self, work: Any, run: Any) -> None:
        with batch_of(work) as batch:
            results = [batch.enqueue(each, 1) for each in (work.add, work.aadd)]
            batch.enqueue_many(work.add.using(priority=5, queue_name="second"), [2, {"one": 3}])
        assert not Message.objects.filter(key=batch.then.id).exists()
        run()
        assert counts(batch) == {"total": 4, "done": 4}
        for each in results:
            each.refresh()
            assert each.return_value == 1

    @by_both
    @pytest.mark.parametrize("name", ["pay", "pay_without_results"])
    def test_b8_transactional_members_count_in_their_transaction(
        self, settings: Any, work: Any, run: Any, name: str
    ) -> None:
        if name == "pay_without_results":
            settings.TASKS = configured(RESULTS=None)
        then = work.summarize.using(queue_name="second")
        with task_batch(then=then, args=["x"]) as batch:
            batch.enqueue(work.pay, "a")
        run()
        assert not StoredBatch.objects.exists()

    @by_both
    def test_b10_every_end_counts(self, work: Any, backend: Any, run: Any) -> None:
        with batch_of(work) as batch:
            batch.enqueue(work.add, 1)
            batch.enqueue(work.fail)
            batch.enqueue(work.leave, "set")  # its value cannot be stored
            let_expire(batch.enqueue(work.add.using(expires_in="1h"), 2))
            waiting = batch.enqueue(work.add, 3)
        assert backend.cancel(waiting.id)
        run()
        assert counts(batch) == {"total": 5, "done": 1, "dead": 2, "expired": 1, "dropped": 1}

    @pytest.mark.parametrize("name", ["advance", "endless"])
    def test_b10_a_running_member_that_is_cancelled_counts_as_dropped(
        self, work: Any, backend: Any, name: str
    ) -> None:
        with batch_of(work) as batch:
            result = batch.enqueue(getattr(work, name))
        with running(worker_of_tasks()):
            wait_until(lambda: work.said)
            assert backend.cancel(result.id)
            wait_until(lambda: not StoredBatch.objects.exists())
        assert counts(batch) == {"total": 1, "dropped": 1}

    def test_b10_cancelling_the_last_member_offers_then_with_it(
        self, work: Any, backend: Any
    ) -> None:
        with batch_of(work) as batch:
            result = batch.enqueue(work.add, 1)
        with transaction.atomic():
            assert backend.cancel(result.id)
            assert Message.objects.get().key == batch.then.id
            transaction.set_rollback(True)
        assert Message.objects.get().key == result.id
        assert backend.cancel(result.id)
        assert counts(batch) == {"total": 1, "dropped": 1}

    @by_both
    def test_b10_a_dead_member_can_be_waited_for(self, work: Any, run: Any) -> None:
        with batch_of(work, on_dead="wait") as batch:
            batch.enqueue(work.answer, "reject")
        run()
        assert DeadLetter.objects.get().batch_id == batch.id
        TaskQueue("default", 0, "default").redrive_all()
        run()
        assert counts(batch) == {"total": 1, "done": 1}

    @by_both
    def test_b7_a_retried_member_has_not_finished(self, work: Any, run: Any) -> None:
        with batch_of(work) as batch:
            batch.enqueue(work.thrice, ends=2)
        run()
        assert counts(batch) == {"total": 1, "done": 1}


class TestUniqueMembers:
    def test_b10_one_that_is_ignored_joins_nothing(self, work: Any) -> None:
        first = work.once.enqueue("a", 1)
        with batch_of(work) as batch:
            assert batch.enqueue(work.once, "a", 2).id == first.id
        assert counts(batch) == {}

    @pytest.mark.parametrize("priority", [0, 5])
    def test_b10_a_replacing_task_takes_the_place(self, work: Any, priority: int) -> None:
        with batch_of(work) as batch:
            first = batch.enqueue(work.latest, "a", value=1)
        assert work.latest.using(priority=priority).enqueue("a", value=2).id == first.id
        assert StoredBatch.objects.exists()
        drained()
        assert work.said == [("a", 2)]
        assert counts(batch) == {"total": 1, "done": 1}

    @pytest.mark.parametrize("priority", [0, 5])
    def test_b10_one_of_another_batch_leaves_the_first(self, work: Any, priority: int) -> None:
        with batch_of(work) as first:
            first.enqueue(work.latest, "a", value=1)
        with batch_of(work) as second:
            second.enqueue(work.latest.using(priority=priority), "a", value=2)
        drained(queues=("default",))
        assert not StoredBatch.objects.exists()
        assert counts(first) == {"total": 1, "dropped": 1}
        assert counts(second) == {"total": 1, "done": 1}


class TestJoining:
    def test_b9_others_join_by_id_until_the_end(self, work: Any) -> None:
        batch = batch_of(work)
        joined = join_task_batch(batch.id)
        joined.enqueue(work.add, 1)
        assert joined.then is None
        assert joined.close()
        assert not batch.close()
        for each in (
            lambda: joined.enqueue(work.add, 2),
            lambda: joined.enqueue_many(work.add, [2]),
        ):
            with pytest.raises(BatchClosed, match=f"batch {batch.id} is closed"):
                each()
        with pytest.raises(BatchClosed):
            batch.enqueue(work.once, "a")
        assert Message.objects.count() == 1
        assert counts(batch) == {"total": 1, "done": 1}

    @by_both
    @pytest.mark.parametrize("name", ["fan_out", "afan_out"])
    def test_b9_a_running_member_adds_members_behind_the_end(
        self, work: Any, run: Any, name: str
    ) -> None:
        with batch_of(work) as batch:
            batch.enqueue(getattr(work, name), 3)
        run()
        assert counts(batch) == {"total": 15, "done": 15}

    def test_b9_a_task_without_a_batch_has_none(self, work: Any) -> None:
        result = work.report_batch.enqueue()
        drain()
        assert work.report_batch.get_result(result.id).return_value == [None, None]

    def test_b9_an_empty_batch_enqueues_then_at_its_end(self, work: Any) -> None:
        with batch_of(work) as batch:
            assert batch.id
        assert counts(batch) == {}

    def test_b9_a_cancelled_batch_leaves_its_members(self, work: Any) -> None:
        with batch_of(work) as batch:
            result = batch.enqueue(work.add, 1)
        assert batch.cancel()
        drained()
        assert work.add.get_result(result.id).status == "SUCCESSFUL"
        assert not Message.objects.exists()

    def test_b9_a_block_that_raises_in_a_transaction_leaves_nothing(self, work: Any) -> None:
        def fill() -> None:
            with batch_of(work) as batch:
                batch.enqueue(work.add, 1)
                raise KeyError

        with transaction.atomic(), pytest.raises(KeyError):
            fill()
        assert not Message.objects.exists()
        assert not StoredBatch.objects.exists()

    def test_b8_the_asynchronous_form(self, work: Any) -> None:
        async def fill() -> Any:
            async with batch_of(work) as batch:
                await batch.aenqueue(work.aadd, 1)
                await batch.aenqueue_many(work.add, [2, 3])
            return batch

        batch = async_to_sync(fill)()
        drained(queues=("default",))
        assert counts(batch) == {"total": 3, "done": 3}


@pytest.fixture
def immediate(settings: Any) -> None:
    named = "delayed_queue.tasks.testing.ImmediateBackend"
    settings.TASKS = {"default": configured()["default"] | {"BACKEND": named}}


@pytest.mark.usefixtures("immediate")
class TestImmediately:
    def test_b12_then_runs_at_the_end_of_the_batch(self, work: Any) -> None:
        with batch_of(work) as batch:
            assert batch.enqueue(work.add, 1).return_value == 1
            assert batch.enqueue(work.fail).status == "FAILED"
            assert batch.enqueue_many(work.add, [2])[0].return_value == 2
        batch.then.refresh()
        assert batch.then.return_value[1]["total"] == 3


@pytest.fixture
def elsewhere(settings: Any) -> Iterator[None]:
    """A backend with another database, which no test reaches, and one that is not ours."""
    connections.databases["elsewhere"] = connections.databases["default"]
    dummy = f"{type(task_backends['default']).__mro__[1].__module__.rsplit('.', 1)[0]}.dummy"
    settings.TASKS = configured() | {
        "elsewhere": configured(DATABASE="elsewhere")["default"],
        "other": {"BACKEND": f"{dummy}.DummyBackend", "QUEUES": []},
    }
    yield
    del connections.databases["elsewhere"]


@pytest.mark.usefixtures("elsewhere")
class TestRefusals:
    def test_b13_members_that_cannot_join_are_refused(self, work: Any) -> None:
        batch, unknown = batch_of(work), join_task_batch(2**62)
        with pytest.raises(BatchClosed):
            unknown.enqueue(work.add, 1)
        with pytest.raises(InvalidTask, match="in the database 'elsewhere', but the batch in 'def"):
            batch.enqueue(work.add.using(backend="elsewhere"), 1)
        with pytest.raises(InvalidTask, match=r"TASKS\['other'\], which has no batches"):
            batch.enqueue(work.add.using(backend="other"), 1)
        with pytest.raises(InvalidTask, match="is not a task"):
            batch.enqueue(print, 1)
        with pytest.raises(InvalidTask, match="is unique"):
            batch.enqueue_many(work.once, ["a"])
        with pytest.raises(TypeError, match=r"args\[0\]"):
            batch.enqueue(work.add, {1})
        assert not Message.objects.exists()

    @pytest.mark.parametrize("batch_id", [0, "7", None, True, 2**63])
    def test_b13_an_id_that_cannot_be_is_refused(self, batch_id: Any) -> None:
        with pytest.raises(InvalidMessage, match="must be the id of a batch"):
            join_task_batch(batch_id)

    def test_b13_a_backend_that_is_not_ours_is_refused(self) -> None:
        for alias in ("other", "missing"):
            with pytest.raises(InvalidTask, match=f"no backend '{alias}' of delayed_queue"):
                join_task_batch(1, backend=alias)

    def test_b13_a_then_that_cannot_be_is_refused(self, work: Any) -> None:
        past = timezone.now() - timedelta(hours=1)
        cases: list[tuple[Any, Any, Any, str]] = [
            (work.add, [{1}], TypeError, r"args\[0\]"),
            (work.add, ["\ud800"], ValueError, "surrogate"),
            (work.add, [], InvalidTask, "missing a required argument"),
            (work.once, ["a"], InvalidTask, "has unique, so it cannot end"),
            (work.add.using(expires_in="1h"), [1], InvalidTask, "has expires_in, so it cannot"),
            (work.add.using(expires_at=past), [1], InvalidTask, "before its due time"),
            (work.add.using(backend="other"), [1], InvalidTask, "has no batches"),
            (print, [1], InvalidTask, "is not a task"),
        ]
        for then, args, error, match in cases:
            with pytest.raises(error, match=match):
                task_batch(then, args=args)
        with pytest.raises(InvalidConfiguration, match="on_dead"):
            task_batch(work.add, args=[1], on_dead="stop")
        assert not StoredBatch.objects.exists()
        assert not TaskResult.objects.exists()
