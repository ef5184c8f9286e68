"""How a task on Spark calls a handler for several messages at once, and how fast: without a JVM."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, pairwise
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue, RetryPolicy, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.database import steady
from delayed_queue.spark.pipeline.handling import (
    Calls,
    Handling,
    Pace,
    Place,
    Settler,
    Tally,
    ended_of,
)
from delayed_queue.spark.source.ledger import JobKey
from tests.spark.leasing import reader
from tests.spark.pipeline_targets import AT_WORK, LEFT
from tests.spark.pipelines import TARGETS
from tests.support.processes import wait_until


def handled(
    queue: DelayedQueue, payloads: list[Any], handling: Handling,
    clock: Callable[[], float] = time.monotonic, attempt: int = 0,
) -> Tally:  # fmt: skip
    """Lease all, and handle them as a task does."""
    queue.offer_batch(
        [ScheduledMessage(f"k{number}", payload) for number, payload in enumerate(payloads)]
    )
    source, key = reader(), JobKey("query", 3)
    lease_id = source.latestOffset(source.initialOffset(), ReadMaxRows(1_000))["lock"]
    source.stop()
    ids = list(Message.objects.order_by("id").values_list("id", flat=True))
    with steady() as connection, Calls(handling) as calls:
        place = Place(key, attempt=attempt)
        settler = Settler(connection, handling, "orders|json", place, calls, clock)
        settler.handle(lease_id, ids)
    return ended_of(key)


class TestConcurrency:
    def test_threads_make_as_many_calls_at_once(self, queue: DelayedQueue) -> None:
        """Each call waits for two others: with fewer threads it would fail."""
        handling = Handling(f"{TARGETS}:meeting", "orders", concurrency=3)
        assert handled(queue, [1] * 9, handling).done == 9
        assert Message.objects.count() == 0

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_a_loop_makes_as_many_and_no_more(self, queue: DelayedQueue, concurrency: int) -> None:
        AT_WORK.most = 0
        handling = Handling(f"{TARGETS}:counted_later", "orders", concurrency=concurrency)
        assert handled(queue, [1] * 9, handling).done == 9
        assert AT_WORK.most == concurrency

    @pytest.mark.parametrize("name", ["answering", "answering_later"])
    def test_each_is_judged_by_its_own_answer(self, queue: DelayedQueue, name: str) -> None:
        handling = Handling(
            f"{TARGETS}:{name}", "orders", retry=RetryPolicy.ladder("1h"), concurrency=4
        )
        tally = handled(queue, [1, "fail", "reject", 2, "snooze", 3], handling)
        assert tally == Tally(done=3, retried=1, snoozed=1, dead=1)
        left = {each.key: each.last_error or "" for each in Message.objects.all()}
        assert left.keys() == {"k1", "k4"}
        assert "ValueError: broken" in left["k1"]

    def test_what_a_thread_opens_through_django_is_closed(
        self, queue: DelayedQueue, other: psycopg.Connection[Any]
    ) -> None:
        sessions = """SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'of a handler'"""
        handling = Handling(f"{TARGETS}:asking", "orders", concurrency=3)
        assert handled(queue, [1] * 6, handling).done == 6
        # The server ends a session a moment after its client has closed it.
        wait_until(lambda: other.execute(sessions).fetchone() == (0,))


@pytest.mark.parametrize(
    ("seconds", "attempt", "left"),
    [
        (0, 0, [700, 600, 400]),
        (1, 0, [700, 600, 500, 400, 300, 200, 100]),
        (0, 1, [*range(700, 0, -1)]),
    ],
)
def test_what_is_quick_is_settled_by_more_at_once(
    queue: DelayedQueue, seconds: float, attempt: int, left: list[int]
) -> None:
    """But for a task that is repeated: what it has at work may be what kills."""
    LEFT.clear()
    times = count(0.0, seconds)
    handling = Handling(f"{TARGETS}:noting_what_is_left", "orders")
    assert handled(queue, [1] * 700, handling, lambda: next(times), attempt).done == 700
    assert left == LEFT


class TestPace:
    @given(
        st.floats(0.1, 1000, allow_nan=False),
        st.lists(st.floats(0, 10, allow_nan=False), min_size=2, max_size=50),
    )
    def test_calls_are_a_step_apart_whenever_they_come(
        self, rate: float, pauses: list[float]
    ) -> None:
        now = 0.0
        pace = Pace(rate, lambda: now)
        begins = []
        for pause in pauses:
            now += pause
            begins.append(now + pace.wait())
        assert all(two - one >= 1 / rate - 1e-6 for one, two in pairwise(begins))

    def test_without_a_rate_nobody_waits(self) -> None:
        pace = Pace(None, lambda: 5.0)
        assert [pace.wait() for _ in range(3)] == [0, 0, 0]

    def test_tasks_share_the_rate(self) -> None:
        handling = Handling("a:b", "orders", rate=10.0)
        assert handling.shared_by(4).rate == 2.5
        assert Handling("a:b", "orders").shared_by(4).rate is None

    @pytest.mark.parametrize(("rate", "concurrency"), [(0.0, 1), (-1.0, 1), (1.0, 0), (1.0, 1001)])
    def test_what_cannot_be_is_refused(self, rate: float, concurrency: int) -> None:
        with pytest.raises(InvalidConfiguration, match=r"--(rate|concurrency) is from"):
            Handling("a:b", "orders", rate=rate, concurrency=concurrency)
