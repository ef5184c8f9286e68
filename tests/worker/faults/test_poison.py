"""Messages that kill their process are dead-lettered, and no other message is (W5)."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import DeadLetter
from tests.support.ledger import effects, is_drained
from tests.support.processes import wait_until
from tests.support.programs import ROUNDS, wait_while_tending, working
from tests.workerapp.handlers import QUICK
from tests.workerapp.models import Effect

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

DEATHS: Final = ["exit", "segfault", "out of memory"]
BATCH: Final = 50
POISON: Final = "k25"


def offer_with_poison(death: str) -> set[str]:
    """Offer a batch with poison in its middle; return the keys of the others."""
    keys = [f"k{number}" for number in range(BATCH)]
    messages = [ScheduledMessage(key, death if key == POISON else None) for key in keys]
    DelayedQueue("poison").offer_batch(messages)
    return set(keys) - {POISON}


@pytest.mark.usefixtures("each_round")
@pytest.mark.long
@pytest.mark.parametrize("concurrency", ["1", "4"])
@pytest.mark.parametrize("death", DEATHS)
def test_w5_a_poison_message_dies_and_the_rest_of_its_batch_is_handled(death, concurrency):
    """Dead after its attempts, with the reason; messages claimed with it are not."""
    others = offer_with_poison(death)
    options = ("--queue", "poison", "--lease", "0.5", "--concurrency", concurrency)
    with working(*options, "--batch-size", str(BATCH)) as worker:
        wait_while_tending(worker, is_drained)
    letter = DeadLetter.objects.get()
    assert letter.key == POISON
    assert letter.reason.startswith("crashed")
    assert letter.attempts >= QUICK.max_attempts
    assert set(effects()) == others


FRAIL: Final = ("frail", "frail_awaited", "frail_transacted")


def offer_frail(queue: str, poisons: list[str], innocents: int, draw: Random) -> set[str]:
    """Offer poison and innocent messages in any order; return the keys of the poison."""
    payloads: list[Any] = [*poisons, *[None] * innocents]
    draw.shuffle(payloads)
    messages = [ScheduledMessage(f"{queue}{n}", each) for n, each in enumerate(payloads)]
    DelayedQueue(queue).offer_batch(messages)
    return {each.key for each in messages if each.payload}


def wait_for_innocents_spared(poison: set[str], innocents: int, *options: str) -> None:
    """Run a worker until all are settled; innocent messages were handled and lost no attempt."""
    queues = [word for name in FRAIL for word in ("--queue", name)]
    with working(*queues, "--lease", "60", *options) as worker:
        wait_until(is_drained, 180)
        assert worker.starts == 1
        assert worker.stop() == 0
    assert {letter.key: letter.reason[:7] for letter in DeadLetter.objects.all()} == dict.fromkeys(
        poison, "crashed"
    )
    assert len(set(effects())) == innocents
    assert set(Effect.objects.values_list("attempt", flat=True)) <= {1}


@pytest.mark.parametrize("seed", [number + 1 for number in ROUNDS])
def test_however_many_they_are_poison_messages_take_nobody_with_them(seed: int) -> None:
    """W5, W11: poison in all kinds of handlers, among innocent messages of all kinds."""
    draw = Random(seed)
    poison, innocents = set[str](), 0
    for queue in FRAIL:
        count = draw.randint(0, 2)
        others = draw.randint(5, 30)
        poison |= offer_frail(queue, draw.choices(DEATHS, k=count), others, draw)
        innocents += others
    options = ("--concurrency", str(draw.randint(1, 6)), "--processes", str(draw.randint(1, 3)))
    wait_for_innocents_spared(poison, innocents, *options)
