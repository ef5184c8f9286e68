"""Messages that kill the process that handles them: they end, and nobody else does (W5)."""

from __future__ import annotations

from typing import Final

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter
from tests.faults.ledger import effects, is_drained
from tests.faults.programs import wait_while_tending, working
from tests.workerapp.handlers import QUICK

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

DEATHS: Final = ["exit", "segfault", "out of memory"]
BATCH: Final = 50
POISON: Final = "k25"


def offer_with_poison(death: str) -> set[str]:
    """Offer a batch whose middle is poison; return the keys of the others."""
    keys = [f"k{number}" for number in range(BATCH)]
    messages = [ScheduledMessage(key, death if key == POISON else None) for key in keys]
    DelayedQueue("poison").offer_batch(messages)
    return set(keys) - {POISON}


@pytest.mark.parametrize("concurrency", ["1", "4"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_poison_message_dies_and_the_rest_of_its_batch_is_handled(
    death: str, concurrency: str
) -> None:
    """W5: dead after its attempts, with the reason; no other is, though claimed with it."""
    others = offer_with_poison(death)
    options = ("--queue", "poison", "--lease", "0.5", "--concurrency", concurrency)
    with working(*options, "--batch-size", str(BATCH)) as worker:
        wait_while_tending(worker, is_drained)
    letter = DeadLetter.objects.get()
    assert letter.key == POISON
    assert letter.reason.startswith("crashed")
    assert letter.attempts >= QUICK.max_attempts
    assert set(effects()) == others
