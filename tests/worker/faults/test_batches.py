"""Batches that kill their process: no innocent message dies with one (B4)."""

from __future__ import annotations

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter
from tests.support.ledger import effects, is_drained
from tests.support.processes import wait_until
from tests.support.programs import working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.mark.parametrize("queue", ["crowd", "crowd_awaited", "crowd_transacted"])
def test_b4_a_batch_that_kills_its_process_is_handled_one_by_one(queue: str) -> None:
    """Only the message that died alone is dead, though the policy allows one attempt.

    A batch kills its process once for each of its two poison messages, and each of these alone.
    """
    keys = [f"k{number:03}" for number in range(200)]
    poison = {"k077": "out of memory", "k150": "exit"}
    DelayedQueue(queue).offer_batch([ScheduledMessage(key, poison.get(key)) for key in keys])
    with working("--queue", queue, "--lease", "60", "--concurrency", "2") as worker:
        wait_until(is_drained, 60)
        assert worker.stop() == 0
        assert worker.log().count("event=process_died") <= 4
        assert " in_flight=1 queue=crowd" in worker.log()
        assert " batches=1" in worker.log()
    letters = {letter.key: letter for letter in DeadLetter.objects.all()}
    assert letters.keys() == poison.keys()
    assert {each.reason[:7] for each in letters.values()} == {"crashed"}
    assert "nothing else was in flight" in (letters["k077"].last_error or "")
    assert set(effects()) == set(keys) - poison.keys()
    if queue == "crowd_transacted":
        assert set(effects().values()) == {1}
