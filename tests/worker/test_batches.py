"""Members of batches in a worker (B7, B9, B10, B11)."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import Batch, DelayedQueue, Envelope, RetryPolicy, ScheduledMessage
from delayed_queue.handlers import Handler
from delayed_queue.models import DeadLetter, Message, StoredBatch
from delayed_queue.queue.store.finishing import COUNT_MEMBERS, FINISH_BATCHES
from delayed_queue.queue.store.settle import ACKNOWLEDGE_LEASES
from delayed_queue.worker.engine.chores import Chores
from delayed_queue.worker.engine.claims import Claim
from delayed_queue.worker.engine.settling import Counts, Settler
from tests.support.concurrency import raw_connection
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]

THEN = ScheduledMessage("then", 1)
# Every way in which a worker ends the deliveries of a message.
ENDS = {"return": "done", "raise": "dead", "late": "expired"}


def handle(envelope: Envelope) -> None:
    if envelope.payload == "raise":
        raise ValueError("asked to fail")


def handler(name: str = "members", function: Any = handle, **options: Any) -> Handler:
    return handler_of(name, function, **{"retry": RetryPolicy((), 1), **options})


def run(*handlers: Handler, **options: Any) -> Counts:
    return worker_with(*handlers, burst=True, **options).run()


def fill(payloads: list[str], **options: Any) -> None:
    """Close a batch of members with these payloads; "late" has expired."""
    queue = DelayedQueue("members")
    with queue.batch(THEN, then_queue=DelayedQueue("reports"), **options) as batch:
        batch.offer_batch(ScheduledMessage(f"k{n}", each, PAST) for n, each in enumerate(payloads))
    late = [f"k{n}" for n, each in enumerate(payloads) if each == "late"]
    Message.objects.filter(key__in=late).update(expires_at=PAST + timedelta(seconds=1))


def then_counts() -> dict[str, int]:
    """Return the header of the only ``then``."""
    (then,) = Message.objects.filter(kind="reports|json")
    assert then.headers is not None
    return {name: value for name, value in then.headers["batch"].items() if name != "id"}


def expected(payloads: list[str]) -> dict[str, int]:
    ends = Counter(ENDS[each] for each in payloads)
    names = ("done", "dead", "dropped", "expired")
    return {"total": len(payloads), **{name: ends[name] for name in names}}


@pytest.mark.parametrize("is_transactional", [False, True])
class TestEnds:
    @pytest.mark.parametrize("end", ENDS)
    def test_b7_the_last_member_offers_then(self, is_transactional: bool, end: str) -> None:
        fill([end])
        run(handler(transactional=is_transactional))
        assert then_counts() == expected([end])
        assert not StoredBatch.objects.exists()

    def test_b10_every_end_of_many_members_counts(self, is_transactional: bool) -> None:
        payloads = ["return", "raise", "late", "return"] * 25
        fill(payloads)
        run(handler(transactional=is_transactional), batch_size=7)
        assert then_counts() == expected(payloads)

    def test_b7_a_handler_of_many_messages_finishes_a_batch(self, is_transactional: bool) -> None:
        def handle_many(batch: Batch) -> None:
            for each in batch:
                if each.payload == "raise":
                    batch.reject(each, "bad")

        payloads = ["return", "raise", "late"] * 5
        fill(payloads)
        run(handler(function=handle_many, many=True, transactional=is_transactional))
        assert then_counts() == expected(payloads)

    def test_b9_a_handler_adds_members(self, is_transactional: bool) -> None:
        def fan_out(envelope: Envelope) -> None:
            if envelope.payload > 0:
                for n in range(2):
                    envelope.batch.offer_or_update(f"{envelope.key}-{n}", envelope.payload - 1)

        with DelayedQueue("members").batch(THEN, then_queue=DelayedQueue("reports")) as batch:
            batch.offer_or_update("k", 3)
        run(handler(function=fan_out, transactional=is_transactional))
        assert then_counts()["done"] == 1 + 2 + 4 + 8

    def test_b10_waiting_for_dead_letters(self, is_transactional: bool) -> None:
        fill(["return", "raise"], on_dead="wait")
        run(handler(transactional=is_transactional))
        assert not Message.objects.exists()
        assert DeadLetter.objects.get().batch_id == StoredBatch.objects.get().pk
        DelayedQueue("members").redrive_all()
        run(handler(function=lambda _: None, transactional=is_transactional))
        assert then_counts() == expected(["return", "return"])

    def test_b7_then_is_handled_like_any_message(self, is_transactional: bool) -> None:
        first: list[Envelope] = []
        second: list[Envelope] = []
        fill(["return"])
        run(handler(function=first.append, transactional=is_transactional))
        run(handler("reports", second.append, transactional=is_transactional))
        assert len(first) == len(second) == 1


class TestCost:
    def test_b11_only_members_add_statements_to_a_round_trip(self) -> None:
        """One before the settlements and one behind them, however many members there are."""
        queue = DelayedQueue("members")
        messages = [ScheduledMessage(f"k{n}", "return", PAST) for n in range(20)]
        queue.offer_batch(messages)
        assert settlements(queue) == [ACKNOWLEDGE_LEASES]
        Message.objects.all().delete()
        queue.join_batch(open_batch()).offer_batch(messages)
        assert settlements(queue) == [COUNT_MEMBERS, ACKNOWLEDGE_LEASES, FINISH_BATCHES]
        assert COUNT_MEMBERS.count("UPDATE delayed_queue_batch") == 1


def settlements(queue: DelayedQueue) -> list[str]:
    """Return the statements by which a worker settles all messages as handled."""
    batch = queue.try_poll_many(100)
    claim = Claim(worker_with(handler()).consumers[0], batch.lease_id, list(batch), 0.0)
    claim.done += [each.message_id for each in batch]
    return [each.step[0] for each in Settler(None, Counts()).settlements([claim])]


def open_batch() -> int:
    return DelayedQueue("members").batch(THEN, then_queue=DelayedQueue("reports")).id


class TestSweep:
    def test_b10_a_member_that_others_deleted_is_noticed(self) -> None:
        fill(["return"])
        Message.objects.filter(kind="members|json").delete()
        chores = Chores("default")
        chores.look()
        assert then_counts() == expected([])

    def test_an_open_batch_and_one_with_members_stay(self) -> None:
        fill(["return"])
        open_batch()
        Chores("default").look()
        assert StoredBatch.objects.count() == 2
        assert not Message.objects.filter(kind="reports|json").exists()


def test_b7_a_locked_batch_does_not_hold_up_other_messages() -> None:
    """As with a locked message: its members are deferred, the others are settled."""
    fill(["return"])
    plain = DelayedQueue("plain")
    worker = worker_with(handler(), handler("plain"))
    with raw_connection() as other, ExitStack() as stack:
        with other.transaction():
            other.execute("SELECT FROM delayed_queue_batch FOR UPDATE")
            stack.enter_context(running(worker))
            wait_until(lambda: Message.objects.filter(lease_id__isnull=False).exists())
            plain.offer_or_update("k", 1, PAST)
            wait_until(lambda: not plain.contains_message("k"))
            assert DelayedQueue("members").contains_message("k0")
        wait_until(lambda: DelayedQueue("reports").contains_message("then"))
    assert then_counts() == expected(["return"])
