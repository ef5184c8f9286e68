"""SIGKILL and lost answers at each step of a message through a worker (W4, W7)."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from tests.support.aiming import ACKNOWLEDGE, CLAIM, EFFECT, Stage
from tests.support.ledger import effects, expire_leases, is_drained, leased, offer, wait_until_quiet
from tests.support.programs import kill, suspended, wait_while_tending, working
from tests.support.proxy import Proxy
from tests.support.sampling import sample

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

POINTS: Final = {
    "before the claim is sent": (CLAIM, Stage.UNSENT),
    "before the claim commits": (CLAIM, Stage.EXECUTED),
    "before the answer to the claim arrives": (CLAIM, Stage.COMMITTED),
    "in the handler, before its effect": (EFFECT, Stage.UNSENT),
    "in the handler, after its effect": (EFFECT, Stage.COMMITTED),
    "after the handler, before the acknowledgement is sent": (ACKNOWLEDGE, Stage.UNSENT),
    "before the acknowledgement commits": (ACKNOWLEDGE, Stage.EXECUTED),
    "before the answer to the acknowledgement arrives": (ACKNOWLEDGE, Stage.COMMITTED),
}
# Small claims, so that there are several; a lease that ends only when the test expires it.
OPTIONS: Final = ("--queue", "ledger", "--lease", "600", "--batch-size", "5", "--concurrency", "1")


@pytest.mark.parametrize(
    "point",
    sample(
        POINTS,
        "in the handler, after its effect",
        "before the answer to the acknowledgement arrives",
    ),
)
def test_w4_a_worker_killed_there_loses_nothing_and_repeats_only_what_was_not_settled(proxy, point):
    """Only messages handled and still under their lease at the kill are handled twice."""
    keys = offer(DelayedQueue("ledger"), 30)
    aim = proxy.aim_at(*POINTS[point], nth=2)
    with working(*OPTIONS, url=proxy.url) as worker:
        victim = suspended(worker, aim)
        wait_until_quiet()
        handled, unsettled = effects(), leased()
        kill(victim)
        expire_leases()
        wait_while_tending(worker, is_drained)
    assert effects() == Counter(keys) + Counter(handled.keys() & unsettled)
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize(
    "point",
    sample(
        (each for each in POINTS if "handler," not in each),
        "before the answer to the claim arrives",
        "before the answer to the acknowledgement arrives",
    ),
)
def test_w7_a_worker_cut_off_there_handles_each_message_once(proxy: Proxy, point: str) -> None:
    """It reconnects, and learns the outcome of its statement."""
    keys = offer(DelayedQueue("ledger"), 30)
    aim = proxy.aim_at(*POINTS[point])
    with working(*OPTIONS, url=proxy.url) as worker:
        aim.wait()
        wait_until_quiet()
        if POINTS[point] == (CLAIM, Stage.COMMITTED):
            expire_leases()  # those of the first claim, whose answer is lost
        proxy.cut_aimed()
        wait_while_tending(worker, is_drained)
        assert worker.starts == 1
    assert effects() == Counter(keys)
    assert not DeadLetter.objects.exists()
