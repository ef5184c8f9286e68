"""A worker's memory does not grow with the number of handled messages (W8)."""

from __future__ import annotations

from typing import Final

import pytest

from delayed_queue import DelayedQueue
from tests.support.ledger import backends, is_drained, offer
from tests.support.processes import wait_until
from tests.support.programs import ROUNDS, Program, working

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PORTION: Final = 4000
# 20,000 messages; the long form has the contract's 100,000.
PORTIONS: Final = 25 if len(ROUNDS) > 1 else 5
# Measured 0.1 MB over 100,000 messages; a leak of 200 bytes each exceeds this in the short form.
GROWTH: Final = 2 * 2**20
# Connections just opened or not yet closed by a thread; a leak adds one per portion.
PASSING: Final = 2


@pytest.mark.long
def test_w8_memory_and_connections_stay_as_they_are() -> None:
    """Measured between portions, with nothing in flight."""
    queue = DelayedQueue("ledger")
    with working("--queue", "ledger", "--concurrency", "4", "--batch-size", "200") as worker:
        found = [after_portion(queue, worker, number) for number in range(PORTIONS)]
    connections = [each[0] for each in found]
    memory = [each[1] for each in found]
    assert max(connections[1:]) <= connections[0] + PASSING
    assert max(memory[1:]) - memory[1] < GROWTH


def after_portion(queue: DelayedQueue, worker: Program, number: int) -> tuple[int, int]:
    """Handle a portion; return the worker's connections and bytes."""
    offer(queue, PORTION, prefix=f"{number}-")
    wait_until(is_drained)
    return backends(), sum(each.memory_info().rss for each in worker.tree())
