"""Last members of a batch of tasks that end, are cancelled or join at one moment (B7, B10)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.db import transaction

from delayed_queue.messages import Envelope
from delayed_queue.models import Message, StoredBatch
from delayed_queue.tasks import task_batch
from delayed_queue.tasks.priorities import TaskQueue
from delayed_queue.tasks.serving import UNLIMITED, servings
from delayed_queue.testing.draining import deliver_treated
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]
ROUNDS: Final = 8


def begun() -> Envelope:
    """Return the next task, leased as by a worker."""
    envelope = TaskQueue("default", 0, "default").try_poll()
    assert envelope is not None
    return envelope


def end(envelope: Envelope) -> bool:
    """Run and settle a task by the statements of a worker; return whether its lease held."""
    serving = servings["default"]
    return deliver_treated(envelope, serving.call, serving, UNLIMITED, "default")[0] != "lost"


def filled(work: Any, *tasks: Any) -> Any:
    """Return a closed batch of tasks, and their results."""
    with task_batch(work.summarize.using(queue_name="second"), args=["report"]) as batch:
        results = [batch.enqueue(each, *args) for each, *args in tasks]
    return batch, results


def counts(batch: Any) -> dict[str, int]:
    """Remove what was offered for the batch, once; return its counts."""
    assert not StoredBatch.objects.exists()
    (then,) = Message.objects.all()
    assert then.key == batch.then.id
    # A second offer would be a later version of the message.
    assert then.version_at == then.created_at
    then.delete()
    return {
        key: each for key, each in (then.headers or {})["batch"].items() if each and key != "id"
    }


def test_b7_the_second_of_two_last_members_waits_and_offers_then(
    work: Any, admin: psycopg.Connection[Any]
) -> None:
    batch, _ = filled(work, (work.add, 1), (work.pay, "a"))
    first, second = begun(), begun()
    with ExitStack() as stack:
        with transaction.atomic():
            assert end(first)
            started = stack.enter_context(calling(partial(end, second)))
            wait_until_blocked(admin, started)
        assert started.answer()
    assert counts(batch) == {"total": 2, "done": 2}


@pytest.mark.parametrize("task", ["add", "fail", "pay"])
def test_b7_two_last_members_that_end_together_offer_one_then(work: Any, task: str) -> None:
    outcome = "dead" if task == "fail" else "done"
    for turn in range(ROUNDS):
        batch, _ = filled(work, (work.add, 1), (getattr(work, task), turn))
        calls: list[Callable[[], Any]] = [partial(end, begun()), partial(end, begun())]
        assert together(calls) == [True, True]
        found = counts(batch)
        assert found["total"] == 2
        assert found[outcome] in (1, 2)


def test_b10_a_cancelled_member_and_the_end_of_the_other_offer_one_then(
    work: Any, backend: Any
) -> None:
    for turn in range(ROUNDS):
        batch, (_, waiting) = filled(work, (work.add, turn), (work.add, turn))
        calls: list[Callable[[], Any]] = [
            partial(end, begun()),
            partial(backend.cancel, waiting.id),
        ]
        assert together(calls) == [True, True]
        assert counts(batch) == {"total": 2, "done": 1, "dropped": 1}


def test_b10_a_member_is_cancelled_or_ends_and_counts_once(work: Any, backend: Any) -> None:
    for turn in range(ROUNDS):
        batch, (result,) = filled(work, (work.add, turn))
        calls: list[Callable[[], Any]] = [partial(end, begun()), partial(backend.cancel, result.id)]
        together(calls)
        assert counts(batch) == {"total": 1, "done": 1}


@pytest.mark.parametrize("priority", [0, 5])
def test_b10_a_member_is_replaced_or_ends_and_its_batch_ends_once(work: Any, priority: int) -> None:
    """The replacing task takes the place, or comes behind the batch."""
    for turn in range(ROUNDS):
        batch, _ = filled(work, (work.latest, "a", turn))
        replacing = work.latest.using(priority=priority)
        run = begun()
        calls: list[Callable[[], Any]] = [
            partial(end, run),
            partial(replacing.enqueue, "a", value=turn + 1),
        ]
        has_ended, _ = together(calls)
        assert StoredBatch.objects.exists() is not has_ended
        left = TaskQueue("default", priority, "default").try_poll()
        assert left is not None
        assert (left.batch_id is None) is has_ended
        assert end(left)
        assert counts(batch) == {"total": 1, "done": 1}
