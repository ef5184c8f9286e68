"""Orderly stops while handlers run use up no attempt (W15)."""

from __future__ import annotations

from functools import partial

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter, Message
from tests.support.ledger import effects
from tests.support.processes import wait_until
from tests.support.programs import working
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

QUEUES = ("endless", "endless_awaited")
OPTIONS = [word for name in QUEUES for word in ("--queue", name)]


def both_have_begun(times: int) -> bool:
    return dict(effects()) == {"k": 2 * times}


@pytest.mark.parametrize("processes", ["0", "1"])
def test_w15_stops_within_one_long_handler_use_up_no_attempt(processes: str) -> None:
    """Two deploys during one handler, whose message has one attempt."""
    for name in QUEUES:
        DelayedQueue(name).offer_or_update("k", None)
    for stops in (1, 2):
        with working(*OPTIONS, "--processes", processes, "--shutdown-timeout", "0.2") as worker:
            wait_until(partial(both_have_begun, stops))
            assert worker.stop() == 0
        assert set(Message.objects.values_list("attempts", "lease_id")) == {(0, None)}
    assert set(Effect.objects.values_list("attempt", flat=True)) == {1}
    assert not DeadLetter.objects.exists()


def test_w15_a_process_that_its_supervisor_must_kill_at_a_stop_uses_up_no_attempt() -> None:
    """The handler holds the interpreter, so the process cannot release the message itself."""
    DelayedQueue("endless").offer_or_update("k", "hold")
    with working("--queue", "endless", "--shutdown-timeout", "0.2", "--lease", "600") as worker:
        wait_until(Effect.objects.exists)
        worker.stop()  # on a slow machine the supervisor's own timeout may also pass
    assert Message.objects.get().attempts == 0


def test_w15_a_process_that_dies_counts_one() -> None:
    DelayedQueue("endless").offer_or_update("k", None)
    with working("--queue", "endless", "--lease", "600") as worker:
        wait_until(Effect.objects.exists)
        (child,) = (each for each in worker.tree() if each.pid != worker.process.pid)
        child.kill()
        wait_until(DeadLetter.objects.exists)
        assert worker.stop() == 0
    assert "signal 9 (SIGKILL)" in (DeadLetter.objects.get().last_error or "")
