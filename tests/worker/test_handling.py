"""Handlers on a worker's event loop, in its threads, and out of time (W1, W8, W10)."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from delayed_queue import DelayedQueue, Envelope, RetryPolicy, ScheduledMessage
from delayed_queue.models import DeadLetter, Message
from delayed_queue.worker.engine.settling import Counts
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]

HOUR = RetryPolicy.ladder("1h")
NEVER = RetryPolicy.never()
SHORT = timedelta(milliseconds=200)


def offer(queue: str, count: int, payload: Any = None) -> None:
    DelayedQueue(queue).offer_batch(ScheduledMessage(f"k{n}", payload) for n in range(count))


class Meeting:
    """Async handlers that continue once ``size`` of them are running."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.present = self.most = self.left = 0
        self.threads: set[int] = set()
        self._is_full = asyncio.Event()

    async def __call__(self, envelope: Envelope) -> None:
        self.threads.add(threading.get_ident())
        self.present += 1
        self.most = max(self.most, self.present)
        if self.present == self.size:
            self._is_full.set()
        await asyncio.wait_for(self._is_full.wait(), 20)
        self.present -= 1
        self.left += 1


class TestEventLoop:
    def test_w1_as_many_run_at_a_time_as_allowed_and_no_more(self) -> None:
        offer("met", 60)
        meeting = Meeting(20)

        async def meet(envelope: Envelope) -> None:
            await meeting(envelope)

        worker = worker_with(
            handler_of("met", meet), burst=True, concurrency=1, async_concurrency=20
        )
        assert worker.run() == Counts(done=60)
        assert (meeting.most, meeting.left) == (20, 60)
        assert len(meeting.threads) == 1

    def test_w1_threads_and_event_loop_serve_one_worker(self) -> None:
        """Neither waits for the other: each continues when both have started."""
        both = threading.Barrier(2, timeout=20)

        def plain(envelope: Envelope) -> None:
            both.wait()

        async def awaited(envelope: Envelope) -> None:
            await asyncio.to_thread(both.wait)

        offer("plain", 5)
        offer("awaited", 5)
        worker = worker_with(
            handler_of("plain", plain), handler_of("awaited", awaited), burst=True, concurrency=1,
            async_concurrency=1,
        )  # fmt: skip
        assert worker.run() == Counts(done=10)

    def test_w10_out_of_time_it_is_cancelled_and_has_failed(self) -> None:
        ends: list[str] = []

        async def endless(envelope: Envelope) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        offer("endless", 1)
        handler = handler_of("endless", endless, retry=NEVER, timeout=SHORT)
        assert worker_with(handler, burst=True).run() == Counts(dead=1)
        assert ends == ["cancelled"]
        letter = DeadLetter.objects.get()
        assert letter.reason == "attempts exhausted: HandlerTimeout"
        assert "took longer than 0.2 s" in (letter.last_error or "")

    def test_a_timeout_of_its_own_is_not_the_handlers(self) -> None:
        async def impatient(envelope: Envelope) -> None:
            raise TimeoutError("somebody else's")

        offer("impatient", 1)
        handler = handler_of("impatient", impatient, retry=NEVER, timeout=timedelta(minutes=1))
        assert worker_with(handler, burst=True).run() == Counts(dead=1)
        assert DeadLetter.objects.get().reason == "attempts exhausted: TimeoutError"

    @pytest.mark.parametrize("error", [ValueError, SystemExit, asyncio.CancelledError])
    def test_whatever_it_raises_is_counted(self, error: type[BaseException]) -> None:
        async def fail(envelope: Envelope) -> None:
            if envelope.payload:
                raise error

        offer("failing", 1, payload=True)
        DelayedQueue("failing").offer_or_update("good", False)
        handler = handler_of("failing", fail, retry=HOUR)
        assert worker_with(handler, burst=True).run() == Counts(done=1, failed=1)
        assert error.__name__ in (Message.objects.get().last_error or "")

    def test_w8_the_connection_behind_it_is_closed_while_it_is_idle(self) -> None:
        pids: set[int] = set()

        async def query(envelope: Envelope) -> None:
            await Effect.objects.acount()
            pids.add(await sync_to_async(lambda: connection.connection.info.backend_pid)())

        worker = worker_with(handler_of("queries", query))
        with running(worker):
            offer("queries", 5)
            wait_until(lambda: worker.counts.done == 5)
            assert pids
            wait_until(lambda: not backends(pids))

    def test_w4_what_does_not_end_is_cancelled_and_given_back(self) -> None:
        begun = threading.Event()

        async def endless(envelope: Envelope) -> None:
            begun.set()
            await asyncio.Event().wait()

        offer("endless", 1)
        worker = worker_with(handler_of("endless", endless), shutdown_timeout=SHORT)
        with running(worker):
            assert begun.wait(20)
        assert Message.objects.values_list("attempts", "lease_id").get() == (0, None)
        assert worker.counts == Counts()


def backends(pids: set[int]) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE pid = ANY (%s)", [list(pids)])
        return [row[0] for row in cursor.fetchall()]


class TestTimeouts:
    def test_w10_a_thread_that_is_late_is_replaced_and_its_result_ignored(self) -> None:
        go_on, envelopes = threading.Event(), []
        both = threading.Barrier(2, timeout=20)

        def handle(envelope: Envelope) -> None:
            if envelope.payload == "late":
                envelopes.append(envelope)
                assert go_on.wait(20)
            else:
                both.wait()

        handler = handler_of("late", handle, retry=NEVER, timeout=timedelta(seconds=1))
        worker = worker_with(handler, concurrency=2)
        queue = DelayedQueue("late")
        with running(worker):
            queue.offer_or_update("k", "late")
            wait_until(lambda: worker.counts.total)
            assert worker.counts == Counts(dead=1)
            assert envelopes[0].lease_lost
            # As many threads as before, beside the stuck one.
            queue.offer_batch([ScheduledMessage("a", "meet"), ScheduledMessage("b", "meet")])
            wait_until(lambda: worker.counts.done == 2)
            assert len(threads_of(worker)) == 3
            assert not worker.is_used_up
            go_on.set()
            wait_until(lambda: len(threads_of(worker)) == 2)
        assert worker.counts == Counts(done=2, dead=1)
        assert DeadLetter.objects.get().reason == "attempts exhausted: HandlerTimeout"

    def test_a_worker_whose_threads_are_all_stuck_ends(self) -> None:
        go_on = threading.Event()

        def stuck(envelope: Envelope) -> None:
            assert go_on.wait(20)

        offer("stuck", 5)
        handler = handler_of("stuck", stuck, retry=HOUR, timeout=SHORT)
        worker = worker_with(handler, concurrency=2, batch_size=2)
        counts = worker.run()
        go_on.set()
        assert worker.is_used_up
        assert counts.failed >= 2
        assert not Message.objects.filter(lease_id__isnull=False).exists()


def threads_of(worker: Any) -> list[threading.Thread]:
    return [each for each in worker.dispatcher.executor.threads if each.is_alive()]


class TestSleep:
    def test_w9_a_worker_that_may_claim_no_more_sleeps(self) -> None:
        spent: list[float] = []

        def slow(envelope: Envelope) -> None:
            started_at = time.process_time()
            threading.Event().wait(0.6)
            spent.append(time.process_time() - started_at)

        offer("slow", 3)
        worker = worker_with(handler_of("slow", slow), max_messages=1, concurrency=4)
        assert worker.run() == Counts(done=1)
        assert spent[0] < 0.3


class TestPartsOfALease:
    def test_w3_what_was_updated_or_dropped_meanwhile_is_lost_and_nothing_else(self) -> None:
        begun, go_on = threading.Semaphore(0), threading.Event()

        def handle(envelope: Envelope) -> None:
            begun.release()
            assert go_on.wait(20)

        offer("parts", 5)
        queue = DelayedQueue("parts")
        worker = worker_with(handler_of("parts", handle), concurrency=5)
        with running(worker):
            assert all(begun.acquire(timeout=20) for _ in range(5))
            assert len(set(Message.objects.values_list("lease_id", flat=True))) == 1
            queue.offer_or_update("k1", "new", delay=timedelta(hours=1))
            queue.drop_message("k2")
            go_on.set()
            wait_until(lambda: worker.counts.total == 5)
        assert worker.counts == Counts(done=3, lost=2)
        left = Message.objects.get()
        assert (left.key, bytes(left.payload), left.attempts) == ("k1", b'"new"', 0)
