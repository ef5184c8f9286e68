"""The worker in this process: the outcome of each message (W1-W4, W10, Q22, Q28)."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from delayed_queue import DelayedQueue, Envelope, RetryPolicy, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import MessageState
from delayed_queue.models import DeadLetter, Message
from delayed_queue.observe import signals
from delayed_queue.worker.engine import executor
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from delayed_queue.worker.options import WorkerOptions
from tests.support.processes import wait_until
from tests.support.running import SOON, handler_of, registry_of, registry_with, running
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]


def burst(*queues: str, **options: Any) -> Counts:
    return Worker(WorkerOptions(queues=queues, burst=True, poll_interval=SOON, **options)).run()


def run_until_settled(queue: DelayedQueue) -> Counts:
    """Run bursts until neither due nor scheduled messages are left."""
    total = Counts()
    while Message.objects.filter(kind=queue.kind).exists():
        counts = burst(queue.name)
        for name in Counts.__slots__:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total


class TestEnds:
    def test_handled_messages_are_deleted(self) -> None:
        queue = DelayedQueue("ledger")
        queue.offer_batch(ScheduledMessage(f"k{n}", n) for n in range(250))
        assert burst("ledger") == Counts(done=250)
        assert Effect.objects.count() == 250
        assert not Message.objects.exists()

    def test_q28_failures_are_retried_then_dead_lettered(self) -> None:
        queue = DelayedQueue("conduct")
        queue.offer_or_update("k", "fail", headers={"trace": "1"})
        assert run_until_settled(queue) == Counts(failed=2, dead=1)
        letter = DeadLetter.objects.get()
        assert (letter.key, letter.attempts, letter.headers) == ("k", 3, {"trace": "1"})
        assert letter.reason == "attempts exhausted: ValueError"
        assert "asked to fail" in (letter.first_error or "")
        assert [each.attempt for each in Effect.objects.order_by("id")] == [1, 2, 3]

    def test_w10_snooze_is_no_failure(self) -> None:
        queue = DelayedQueue("conduct")
        queue.offer_or_update("k", "snooze")
        assert run_until_settled(queue) == Counts(snoozed=1, done=1)
        assert [each.attempt for each in Effect.objects.order_by("id")] == [1, 1]

    def test_w10_reject_goes_straight_to_the_dead_letters(self) -> None:
        DelayedQueue("conduct").offer_or_update("k", "reject")
        assert burst("conduct") == Counts(dead=1)
        assert DeadLetter.objects.get().reason == "asked to be rejected"

    def test_system_exit_in_a_handler_is_a_failure(self) -> None:
        queue = DelayedQueue("conduct")
        queue.offer_or_update("k", "exit")
        assert run_until_settled(queue) == Counts(failed=2, dead=1)

    def test_q22_undecodable_payload_does_not_block(self) -> None:
        DelayedQueue("ledger", codec="text", kind="ledger|json").offer_or_update("bad", "{")
        DelayedQueue("ledger").offer_or_update("good", 1)
        assert burst("ledger") == Counts(done=1)
        assert DeadLetter.objects.get().key == "bad"

    def test_w5_message_whose_attempts_all_crashed_is_dead_lettered_unhandled(self) -> None:
        queue = DelayedQueue("ledger")
        queue.offer_or_update("k", 1)
        for _ in range(3):
            crashed = queue.try_poll()
            assert crashed is not None
            Message.objects.filter(key="k").update(scheduled_at=0)  # the lease runs out
        assert burst("ledger") == Counts(dead=1)
        assert DeadLetter.objects.get().reason.startswith("crashed")
        assert not Effect.objects.exists()


class TestLeases:
    def test_w3_handler_longer_than_its_lease_runs_once(self) -> None:
        entered, leave, calls = threading.Event(), threading.Event(), []

        def slow(envelope: Envelope) -> None:
            calls.append(envelope.attempt)
            entered.set()
            assert leave.wait(20)

        queue = DelayedQueue("slow")
        queue.offer_or_update("k", 1)
        options = WorkerOptions(
            queues=("slow",), lease=timedelta(milliseconds=600), poll_interval=SOON
        )
        worker = Worker(options, registry_of(slow=slow))
        with running(worker):
            assert entered.wait(20)
            first = queue.read("k")
            assert first is not None
            lifetime = timedelta(milliseconds=600)
            wait_until(lambda: _leased_at(queue) > first.scheduled_at + 3 * lifetime)
            leave.set()
            wait_until(lambda: not queue.contains_message("k"))
        assert calls == [1]
        assert worker.counts == Counts(done=1)

    def test_w3_lost_lease_is_told_and_its_result_not_written(self) -> None:
        entered, leave, told = threading.Event(), threading.Event(), []

        def slow(envelope: Envelope) -> None:
            entered.set()
            wait_until(lambda: envelope.lease_lost)
            told.append(envelope.lease_lost)
            assert leave.wait(20)

        queue = DelayedQueue("slow")
        queue.offer_or_update("k", "old")
        options = WorkerOptions(
            queues=("slow",), lease=timedelta(milliseconds=300), poll_interval=SOON
        )
        worker = Worker(options, registry_of(slow=slow))
        with running(worker):
            assert entered.wait(20)
            queue.offer_or_update("k", "new", delay=timedelta(hours=1))
            wait_until(lambda: told)
            leave.set()
            wait_until(lambda: worker.counts.total)
        assert worker.counts == Counts(lost=1)
        stored = queue.read("k")
        assert stored is not None
        assert stored.payload == "new"

    def test_w4_stop_gives_unstarted_messages_back_uncounted(self, monkeypatch):
        monkeypatch.setattr(executor, "AHEAD_SECONDS", 60.0)  # it has leased ahead, and keeps that
        entered, leave = threading.Event(), threading.Event()

        def slow(envelope: Envelope) -> None:
            entered.set()
            assert leave.wait(20)

        queue = DelayedQueue("slow")
        queue.offer_batch(ScheduledMessage(f"k{n}", n) for n in range(10))
        worker = Worker(WorkerOptions(queues=("slow",), concurrency=1), registry_of(slow=slow))
        with running(worker) as thread:
            assert entered.wait(20)
            wait_until(lambda: queue.stats().leased == 10)
            worker.stop()
            wait_until(lambda: queue.stats().due == 9)
            assert queue.stats().leased == 1
            leave.set()
            thread.join(timeout=20)
        assert worker.counts == Counts(done=1)
        assert set(Message.objects.values_list("attempts", flat=True)) == {0}

    def test_w4_handler_that_does_not_end_is_given_back_at_the_timeout(self) -> None:
        entered, leave = threading.Event(), threading.Event()

        def stuck(envelope: Envelope) -> None:
            entered.set()
            assert leave.wait(20)

        queue = DelayedQueue("stuck")
        queue.offer_or_update("k", 1)
        worker = Worker(
            WorkerOptions(queues=("stuck",), shutdown_timeout=SOON), registry_of(stuck=stuck)
        )
        with running(worker) as thread:
            assert entered.wait(20)
            worker.stop()
            thread.join(timeout=20)
            stored = queue.read("k")
            assert stored is not None
            assert (stored.state, stored.attempts) == (MessageState.DUE, 0)
            leave.set()


class TestStart:
    @pytest.mark.parametrize(
        "wrong",
        [
            {"concurrency": 0},
            {"batch_size": 0},
            {"max_messages": 0},
            {"lease": timedelta(0)},
            {"poll_interval": timedelta(0)},
            {"shutdown_timeout": timedelta(seconds=-1)},
            {"queues": ("ledger", "ledger")},
        ],
    )
    def test_wrong_options_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidConfiguration):
            WorkerOptions(**wrong)

    def test_handler_lease_and_retry_are_used(self) -> None:
        seven = timedelta(seconds=7)
        handler = handler_of("own", print, retry=RetryPolicy.never(), lease=seven)
        worker = Worker(WorkerOptions(), registry_with(handler))
        consumer = worker.consumers[0]
        assert consumer.queue.lease_duration == seven
        assert consumer.policy == RetryPolicy.never()


class TestSignals:
    def test_w13_receivers_hear_each_end_and_cannot_break_it(self) -> None:
        heard: list[str] = []

        def on_done(envelopes: list[Envelope], **kwargs: Any) -> None:
            heard.extend(each.key for each in envelopes)
            raise RuntimeError("a receiver that fails")

        signals.acknowledged.connect(on_done)
        try:
            DelayedQueue("ledger").offer_batch([ScheduledMessage("a", 1), ScheduledMessage("b", 2)])
            assert burst("ledger") == Counts(done=2)
        finally:
            signals.acknowledged.disconnect(on_done)
        assert sorted(heard) == ["a", "b"]


def _leased_at(queue: DelayedQueue) -> Any:
    stored = queue.read("k")
    assert stored is not None
    return stored.scheduled_at
