"""Transactional handlers killed or cut off: each effect exactly once (W11)."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Final

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter
from tests.support.aiming import COMMIT, EFFECT, Stage
from tests.support.ledger import effects, is_drained, offer, terminate_backends
from tests.support.processes import wait_until
from tests.support.programs import kill, suspended, wait_while_tending, working
from tests.support.proxy import Proxy
from tests.support.sampling import sample
from tests.workerapp.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

OPTIONS: Final = ("--queue", "transacted", "--batch-size", "5")
# Only commits on connections with an effect count: others are not the handler's.
POINTS: Final = {
    "before the first effect": (EFFECT, Stage.UNSENT, 1, ""),
    "between effects": (EFFECT, Stage.UNSENT, 7, ""),
    "after an effect": (EFFECT, Stage.COMMITTED, 7, ""),
    "before the commit": (COMMIT, Stage.UNSENT, 2, EFFECT),
    "after the commit, before its answer arrives": (COMMIT, Stage.COMMITTED, 2, EFFECT),
}
DEATHS: Final = ["exit", "segfault", "out of memory"]


@pytest.mark.parametrize("concurrency", sample(["1", "4"], "4"))
@pytest.mark.parametrize("point", sample(POINTS, "before the commit"))
def test_w11_a_worker_killed_there_has_each_effect_exactly_once(proxy, point, concurrency):
    """Effects and acknowledgement commit together, or neither does."""
    keys = offer(DelayedQueue("transacted"), 40)
    pattern, stage, nth, after = POINTS[point]
    aim = proxy.aim_at(pattern, stage, nth=nth, after=after)
    with working(*OPTIONS, "--concurrency", concurrency, url=proxy.url) as worker:
        kill(suspended(worker, aim))
        wait_while_tending(worker, is_drained)
    assert effects() == Counter(keys)
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize("point", sample(POINTS, "after the commit, before its answer arrives"))
def test_w11_a_worker_cut_off_there_has_each_effect_exactly_once(proxy: Proxy, point: str) -> None:
    """The lost transaction is repeated; a committed one is not."""
    keys = offer(DelayedQueue("transacted"), 40)
    pattern, stage, nth, after = POINTS[point]
    aim = proxy.aim_at(pattern, stage, nth=nth, after=after)
    with working(*OPTIONS, "--concurrency", "1", url=proxy.url) as worker:
        aim.wait()
        proxy.cut_aimed()
        wait_while_tending(worker, is_drained)
        assert worker.starts == 1
    assert effects() == Counter(keys)
    assert not DeadLetter.objects.exists()


def test_connections_ended_again_and_again_leave_each_effect_exactly_once() -> None:
    """W11, W7."""
    keys = offer(DelayedQueue("transacted"), 600)
    with working("--queue", "transacted") as worker:
        for _ in range(2):
            seen = Effect.objects.count()
            wait_until(partial(_went_on, seen))
            terminate_backends()
        wait_until(is_drained)
        assert worker.stop() == 0
    assert effects() == Counter(keys)
    assert not DeadLetter.objects.exists()


def _went_on(effects_before: int) -> bool:
    return Effect.objects.count() > effects_before or is_drained()


@pytest.mark.parametrize("concurrency", sample(["1", "4"], "4"))
@pytest.mark.parametrize("death", sample(DEATHS, "segfault"))
def test_a_transactional_poison_message_dies_and_the_rest_has_one_effect_each(death, concurrency):
    """W11, W5: each death rolls back its transaction, yet counts; its effects never do."""
    keys = [f"k{number}" for number in range(50)]
    messages = [ScheduledMessage(key, death if key == "k25" else key) for key in keys]
    DelayedQueue("transacted").offer_batch(messages)
    with working("--queue", "transacted", "--concurrency", concurrency) as worker:
        wait_while_tending(worker, is_drained)
    letter = DeadLetter.objects.get()
    assert letter.key == "k25"
    assert letter.reason.startswith("crashed")
    assert effects() == Counter(set(keys) - {"k25"})
