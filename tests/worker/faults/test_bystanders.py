"""Messages in flight beside one that kills the process; none may be retried (O27, W5)."""

from __future__ import annotations

import re

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter, Worker
from tests.support.ledger import effects, is_drained
from tests.support.processes import wait_until
from tests.support.programs import Program, working
from tests.support.sampling import sample
from tests.workerapp.handlers import BYSTANDERS

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

QUEUES = ("brittle", "brittle_ordered", "brittle_transacted", "brittle_awaited")
ENDS = {"exit": "exit code 9", "segfault": "signal 11 (SIGSEGV)", "out of memory": "signal 9"}


def offer_killer_and_bystanders(death: str) -> None:
    plain = [ScheduledMessage(key, None) for key in sorted(BYSTANDERS) if key.startswith("sync")]
    DelayedQueue("brittle").offer_batch([ScheduledMessage("killer", death), *plain])
    ordered = DelayedQueue("brittle_ordered")
    ordered.offer_batch(ScheduledMessage(key, None, group="g") for key in ("first", "second"))
    DelayedQueue("brittle_transacted").offer_or_update("transacted", None)
    awaited = DelayedQueue("brittle_awaited")
    awaited.offer_batch(ScheduledMessage(key, None) for key in ("async1", "async2"))


def options() -> list[str]:
    return [word for name in QUEUES for word in ("--queue", name)]


def deaths_in(worker: Program) -> list[str]:
    return re.findall(r"event=process_died .*", worker.log())


@pytest.mark.parametrize("death", sample(ENDS, "exit"))
def test_o27_bystanders_that_are_never_retried_are_handled(death: str) -> None:
    """Threads, a FIFO group that blocks, a transaction, coroutines: all beside one killer."""
    offer_killer_and_bystanders(death)
    with working(*options(), "--concurrency", "8", "--lease", "60") as worker:
        wait_until(is_drained, 120)
        assert worker.stop() == 0
    letter = DeadLetter.objects.get()
    assert (letter.key, letter.attempts) == ("killer", 2)
    assert letter.reason.startswith("crashed")
    assert effects().keys() == {"killer", "second", *BYSTANDERS}
    assert set(effects().values()) == {1}
    last, first = (letter.last_error or "").split("\n")
    assert re.match(
        rf"Crash 2: {re.escape(ENDS[death])}.*, worker \S+, process 1 \(pid \d+\) on \S+; "
        r"nothing else was in flight$",
        last,
    )
    assert first.startswith(f"Crash 1: {ENDS[death]}")
    assert set(first.partition("in flight: ")[2].split(", ")) == {
        "brittle/killer", "brittle/sync1", "brittle/sync2", "brittle/sync3",
        "brittle_ordered/first", "brittle_transacted/transacted", "brittle_awaited/async1",
        "brittle_awaited/async2",
    }  # fmt: skip
    beside, alone = deaths_in(worker)
    assert "brittle/killer" in beside
    assert "in_flight=1 queue=brittle key=killer" in alone
    assert not Worker.objects.exists()
