"""Messages that a worker has leased ahead and cannot start: others get them (N5, W2)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Final

import pytest

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.support.processes import wait_until
from tests.support.running import handler_of, running, worker_with
from tests.workerapp.models import Effect

pytestmark = pytest.mark.django_db(transaction=True)

TIMEOUT: Final = 20
HOUR: Final = timedelta(hours=1)
EVENT: Final = "event=messages_given_back"


class Conduct:
    """Acts as the payload names: ``meet`` returns once three do so, ``hang`` once released."""

    def __init__(self) -> None:
        self.three = threading.Barrier(3, timeout=TIMEOUT)
        self.hanging = threading.Event()
        self.may_end = threading.Event()
        self.delivered: list[tuple[str, int]] = []

    def __call__(self, envelope: Envelope) -> None:
        self.delivered.append((envelope.key, envelope.attempt))
        match envelope.payload:
            case "meet":
                self.three.wait()
            case "slow":
                threading.Event().wait(0.3)
            case "hang":
                self.hanging.set()
                assert self.may_end.wait(TIMEOUT)

    async def awaited(self, envelope: Envelope) -> None:
        await asyncio.to_thread(self, envelope)


@pytest.fixture
def conduct() -> Conduct:
    return Conduct()


@pytest.fixture(params=["threads", "event loop"])
def function(request: pytest.FixtureRequest, conduct: Conduct) -> Callable[[Envelope], Any]:
    return conduct if request.param == "threads" else conduct.awaited


def worker_of(function: Callable[[Envelope], Any], slots: int, **options: Any) -> Worker:
    claim = options.pop("claim", "fast")
    handler = handler_of("ahead", function, claim=claim)
    return worker_with(handler, concurrency=slots, async_concurrency=slots, **options)


def offer(payload: str, count: int, prefix: str = "k") -> None:
    keys = [f"{prefix}{each}" for each in range(count)]
    DelayedQueue("ahead").offer_batch(ScheduledMessage(key, payload) for key in keys)


def offer_behind_one_that_hangs(count: int) -> None:
    queue = DelayedQueue("ahead")
    hangs = ScheduledMessage("hangs", "hang")
    queue.offer_batch([hangs, *(ScheduledMessage(f"w{each}", "quick") for each in range(count))])


def is_empty() -> bool:
    return not Message.objects.exists()


def warm(workers: list[Worker], payload: str, count: int) -> None:
    """Let each of the workers handle some such messages."""

    def have_all() -> bool:
        offer(payload, count)
        wait_until(is_empty)
        return all(worker.counts.done >= 4 for worker in workers)

    wait_until(have_all)


@contextmanager
def all_running(workers: list[Worker]) -> Iterator[None]:
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(running(worker))
        yield


@pytest.mark.parametrize(
    ("claim", "before"),
    [("fast", "nothing"), ("fast", "slow"), ("fast", "quick"), ("strict", "quick")],
)
def test_n5_two_workers_with_batch_two_handle_three_messages_at_the_same_time(
    function: Callable[[Envelope], Any], conduct: Conduct, claim: str, before: str
):
    """The test of the original design: no message waits, with any history of the workers."""
    workers = [worker_of(function, 2, batch_size=2, claim=claim) for _ in range(2)]
    with all_running(workers):
        if before != "nothing":
            warm(workers, before, 8 if before == "slow" else 40)
        offer("meet", 3, "m")
        wait_until(is_empty)
    met = [(key, attempt) for key, attempt in conduct.delivered if key.startswith("m")]
    assert sorted(met) == [("m0", 1), ("m1", 1), ("m2", 1)]
    assert {worker.counts.failed for worker in workers} == {0}


def test_what_waits_behind_a_slow_one_is_handled_by_another_worker(function, conduct, caplog):
    """Neither is near its next poll: a notification wakes the other."""
    first, second = (worker_of(function, 1, batch_size=10, poll_interval=HOUR) for _ in range(2))
    caplog.set_level(logging.INFO, "delayed_queue")
    with running(first):
        warm([first], "quick", 20)
        offer_behind_one_that_hangs(9)
        assert conduct.hanging.wait(TIMEOUT)
        with running(second):
            wait_until(lambda: second.counts.done == 9)
        assert Message.objects.get().key == "hangs"
        conduct.may_end.set()
        wait_until(is_empty)
    assert f"{EVENT} count=9" in caplog.text
    waited = {each for each in conduct.delivered if each[0].startswith("w")}
    assert waited == {(f"w{each}", 1) for each in range(9)}
    assert (first.counts.snoozed, first.counts.lost) == (0, 0)


def test_what_is_given_back_has_its_place_and_is_not_leased_again_before_a_seat_is_free(
    conduct: Conduct, caplog: pytest.LogCaptureFixture
):
    worker = worker_of(conduct, 1, batch_size=10)
    turns: set[float] = set()

    def has_turned() -> bool:
        turns.add(worker.board.turned_at)
        return len(turns) > 5

    caplog.set_level(logging.INFO, "delayed_queue")
    with running(worker):
        warm([worker], "quick", 20)
        offer_behind_one_that_hangs(9)
        wait_until(lambda: EVENT in caplog.text)
        wait_until(lambda: Message.objects.filter(lease_id=None).count() == 9)
        wait_until(has_turned)
        found = Message.objects.filter(key__startswith="w").values_list(
            "lease_id", "attempts", "scheduled_at"
        )
        hanging = Message.objects.get(key="hangs")
        assert {row[:2] for row in found} == {(None, 0)}
        assert {row[2] for row in found} == {hanging.due_at}
        assert caplog.text.count(EVENT) == 1
        conduct.may_end.set()
        wait_until(is_empty)
    assert [key for key, _ in conduct.delivered[-9:]] == [f"w{each}" for each in range(9)]


def test_what_is_given_back_does_not_count_for_the_most_that_a_worker_may_take(conduct: Conduct):
    worker = worker_of(conduct, 1, batch_size=10, max_messages=30)
    offer("quick", 20)
    with running(worker) as thread:
        wait_until(is_empty)
        offer_behind_one_that_hangs(9)
        wait_until(lambda: Message.objects.filter(lease_id=None, attempts=0).count() == 9)
        conduct.may_end.set()
        thread.join(TIMEOUT)
        assert not thread.is_alive()
    assert worker.counts == Counts(done=30)


def test_a_transaction_that_waits_for_a_thread_is_left_waiting(conduct: Conduct):
    """It has leased nothing."""

    def write(envelope: Envelope) -> None:
        Effect.objects.create(queue="transacted", key=envelope.key, attempt=1, pid=0)

    worker = worker_with(
        handler_of("ahead", conduct), handler_of("transacted", write, transactional=True),
        concurrency=1, poll_interval=HOUR,
    )  # fmt: skip
    pool = worker.dispatcher.executor
    with running(worker):
        warm([worker], "quick", 20)
        offer("hang", 1)
        assert conduct.hanging.wait(TIMEOUT)
        DelayedQueue("transacted").offer_or_update("t", 1)
        wait_until(pool.waiting)
        looked_at = pool.looked_at
        wait_until(lambda: pool.looked_at > looked_at)
        assert pool.waiting() == 1
        conduct.may_end.set()
        wait_until(is_empty)
    assert Effect.objects.get().key == "t"
