"""The turns of groups: both stores deal them out alike."""

from __future__ import annotations

from typing import Final

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayed_queue import DelayedQueue, Groups, ScheduledMessage
from delayed_queue.testing import InMemoryQueue, ManualClock

pytestmark = pytest.mark.django_db
NAMES: Final = [*"abcdefgh", None]
RULES: Final = [
    Groups(), Groups(concurrency=1), Groups(concurrency=4), Groups(fair=False),
    Groups(concurrency=3, fair=False), Groups(order="fifo"), Groups(rate="1/s", burst=3),
    Groups(concurrency=2, queue_rate="1/s", queue_burst=9),
]  # fmt: skip


def both(clock: ManualClock) -> tuple[DelayedQueue, DelayedQueue]:
    return DelayedQueue("turns", clock=clock), InMemoryQueue("turns", clock=clock)


def fill(queue: DelayedQueue, counts: dict[str | None, int], weights: dict[str, int]) -> None:
    queue.offer_batch(
        [
            ScheduledMessage(f"{name}{number:03}", None, group=name)
            for name, count in counts.items()
            for number in range(count)
        ]
    )
    for name, weight in weights.items():
        queue.groups.limit(name, weight=weight)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    rules=st.sampled_from(RULES),
    counts=st.dictionaries(st.sampled_from(NAMES), st.integers(1, 20), min_size=1),
    weights=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 9), max_size=3),
    limits=st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=6),
)
def test_both_stores_deal_out_the_same_turns(
    rules: Groups,
    counts: dict[str | None, int],
    weights: dict[str, int],
    limits: list[tuple[int, bool]],
):
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE delayed_queue, delayed_queue_limit")
    queues = both(ManualClock())
    for queue in queues:
        queue.groups.set(rules)
        fill(queue, counts, weights)
    for limit, is_done in limits:
        real, memory = (queue.try_poll_many(limit) for queue in queues)
        assert [each.key for each in real] == [each.key for each in memory]
        if is_done:
            assert real.acknowledge() == memory.acknowledge()
