"""Calls of a task on Spark to batch handlers: without a JVM."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue, RetryPolicy, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.database import steady
from delayed_queue.spark.pipeline.handling import Calls, Handling, Place, Settler, ended_of
from delayed_queue.spark.source.ledger import JobKey
from tests.spark.leasing import reader
from tests.spark.pipeline_targets import AT_WORK, LEFT
from tests.spark.pipelines import TARGETS
from tests.support.processes import wait_until


def handled(
    queue: DelayedQueue, payloads: list[Any], handling: Handling, attempt: int = 0
) -> Counter[str]:
    """Lease all messages, and handle them as a task does."""
    queue.offer_batch(
        [ScheduledMessage(f"k{number}", payload) for number, payload in enumerate(payloads)]
    )
    source, key = reader(), JobKey("query", 3)
    lease_id = source.latestOffset(source.initialOffset(), ReadMaxRows(1_000))["lock"]
    source.stop()
    ids = list(Message.objects.order_by("id").values_list("id", flat=True))
    with steady() as connection, Calls(handling) as calls:
        place = Place(key, attempt=attempt)
        settler = Settler(connection, handling, "orders|json", place, calls)
        settler.handle(lease_id, ids)
    return ended_of(key)


def test_a_handler_of_many_messages_is_refused() -> None:
    """B13"""
    path = "tests.workerapp.handlers:die_of_one_in_a_thread"
    with pytest.raises(InvalidConfiguration, match=r"receives batches \(many=True\)"):
        Handling(path, "crowd").registered()


class TestConcurrency:
    def test_threads_make_as_many_calls_at_once(self, queue: DelayedQueue) -> None:
        """Each call waits for two others: with fewer threads it would fail."""
        handling = Handling(f"{TARGETS}:meeting", "orders", concurrency=3)
        assert handled(queue, [1] * 9, handling)["done"] == 9
        assert Message.objects.count() == 0

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_a_loop_makes_as_many_and_no_more(self, queue: DelayedQueue, concurrency: int) -> None:
        AT_WORK.most = 0
        handling = Handling(f"{TARGETS}:counted_later", "orders", concurrency=concurrency)
        assert handled(queue, [1] * 9, handling)["done"] == 9
        assert AT_WORK.most == concurrency

    @pytest.mark.parametrize("name", ["answering", "answering_later"])
    def test_each_is_judged_by_its_own_answer(self, queue: DelayedQueue, name: str) -> None:
        handling = Handling(
            f"{TARGETS}:{name}", "orders", retry=RetryPolicy.ladder("1h"), concurrency=4
        )
        tally = handled(queue, [1, "fail", "reject", 2, "snooze", 3], handling)
        assert tally == {"done": 3, "retried": 1, "snoozed": 1, "dead": 1}
        left = {each.key: each.last_error or "" for each in Message.objects.all()}
        assert left.keys() == {"k1", "k4"}
        assert "ValueError: broken" in left["k1"]

    def test_what_a_thread_opens_through_django_is_closed(
        self, queue: DelayedQueue, other: psycopg.Connection[Any]
    ) -> None:
        sessions = """SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name = 'of a handler'"""
        handling = Handling(f"{TARGETS}:asking", "orders", concurrency=3)
        assert handled(queue, [1] * 6, handling)["done"] == 6
        # The server ends a session a moment after its client has closed it.
        wait_until(lambda: other.execute(sessions).fetchone() == (0,))


@pytest.mark.parametrize(
    ("name", "payload", "ended"), [("strict", "fail", "dead"), ("settling", 1, "lost")]
)
def test_the_decorators_rules_win_and_a_handler_may_settle_by_itself(
    queue: DelayedQueue, name: str, payload: Any, ended: str
) -> None:
    retry = RetryPolicy.ladder("1h")
    handling = Handling(f"{TARGETS}:{name}", "orders", retry=retry, lease_ms=3_600_000)
    assert handled(queue, [payload], handling) == {ended: 1}
    stored = queue.read("k0")
    assert (stored and stored.state) == ("scheduled" if ended == "lost" else None)


@pytest.mark.parametrize(("attempt", "left"), [(0, [500, 300, 100]), (1, [*range(500, 0, -1)])])
def test_a_repeated_task_settles_one_by_one(
    queue: DelayedQueue, attempt: int, left: list[int]
) -> None:
    """Its message may have killed the task before it."""
    LEFT.clear()
    handling = Handling(f"{TARGETS}:noting_what_is_left", "orders")
    assert handled(queue, [1] * 500, handling, attempt)["done"] == 500
    assert left == LEFT


@pytest.mark.parametrize("concurrency", [0, 1001])
def test_a_concurrency_out_of_range_is_refused(concurrency: int) -> None:
    with pytest.raises(InvalidConfiguration, match="--concurrency is from"):
        Handling("a:b", "orders", concurrency=concurrency)
