"""Consumers killed or cut off in the middle of their transaction (Q30)."""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from tests.support.aiming import COMMIT, EFFECT, Stage
from tests.support.ledger import effects, is_drained, offer
from tests.support.programs import kill, running, suspended, wait_while_tending
from tests.support.proxy import Proxy
from tests.support.sampling import sample
from tests.workerapp.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

CONSUMER: Final = ("-m", "tests.support.consumer", "exact")
TAKEN: Final = r"DELETE FROM delayed_queue\s"
POINTS: Final = {
    "before the message is taken": (TAKEN, Stage.UNSENT),
    "before the answer to the taking arrives": (TAKEN, Stage.EXECUTED),
    "before the effect is written": (EFFECT, Stage.UNSENT),
    "after the effect is written": (EFFECT, Stage.COMMITTED),
    "before the commit": (COMMIT, Stage.UNSENT),
    "after the commit, before its answer arrives": (COMMIT, Stage.COMMITTED),
}


@pytest.mark.parametrize(
    "point", sample(POINTS, "after the effect is written", "before the commit")
)
def test_q30_a_consumer_killed_there_has_each_effect_exactly_once(proxy: Proxy, point: str) -> None:
    """Lost 0, duplicates 0, and no attempt is counted for rolled back messages."""
    keys = offer(DelayedQueue("exact"), 20)
    aim = proxy.aim_at(*POINTS[point], nth=5)
    with running(*CONSUMER, url=proxy.url) as consumer:
        kill(suspended(consumer, aim))
        wait_while_tending(consumer, is_drained)
        assert consumer.starts == 2
    assert effects() == Counter(keys)
    assert set(Effect.objects.values_list("attempt", flat=True)) == {1}
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize(
    "point", sample(POINTS, "before the commit", "after the commit, before its answer arrives")
)
def test_q30_a_consumer_cut_off_there_has_each_effect_exactly_once(proxy, point):
    """The consumer continues, and gets an error for the loss."""
    keys = offer(DelayedQueue("exact"), 20)
    aim = proxy.aim_at(*POINTS[point], nth=5)
    with running(*CONSUMER, url=proxy.url) as consumer:
        aim.wait()
        proxy.cut_aimed()
        wait_while_tending(consumer, is_drained)
        assert consumer.starts == 1
    assert effects() == Counter(keys)
    assert not DeadLetter.objects.exists()
