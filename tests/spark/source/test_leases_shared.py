"""Streams of two queues that share a checkpoint or a lake, on PostgreSQL, without Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from pyspark.sql.streaming.datasource import ReadMaxRows

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Message
from delayed_queue.spark.database import steady
from delayed_queue.spark.pipeline.handling import Calls, Handling, Place, Settler, ended_of
from delayed_queue.spark.source.ledger import JobKey
from delayed_queue.spark.source.stream import LeasingReader
from tests.spark.leasing import FIVE, fill, read, reader, settled, under
from tests.spark.pipelines import TARGETS
from tests.spark.support import keys_of

pytestmark = pytest.mark.usefixtures("queue")

# `make chaos` raises it.
ROUNDS: Final = int(os.environ.get("CHAOS_ROUNDS", "1"))
QUEUES: Final = ("alpha", "beta")
# Steps of a drain at which its process dies; the last is its end.
STEPS: Final = ("leased", "logged", "read", "written", "committed", "done")


class TestAnotherQueuesCheckpoint:
    def offsets(self, queue: DelayedQueue) -> tuple[Any, Any]:
        """Lease a batch, and one ahead, as a driver before its death."""
        fill(queue, 10)
        source = reader()
        start = source.initialOffset()
        end = source.latestOffset(start, FIVE)
        settled(source)
        source.stop()
        return start, end

    @pytest.mark.parametrize("step", ["partitions", "latestOffset", "commit"])
    def test_is_refused_before_anything_is_leased(self, queue: DelayedQueue, step: str):
        start, end = self.offsets(queue)
        DelayedQueue("beta").offer_or_update("b", 1)
        before = set(Message.objects.values_list("kind", "key", "lease_id", "scheduled_at"))
        theirs = reader(queue="beta")
        steps = {
            "partitions": lambda: theirs.partitions(start, end),
            "latestOffset": lambda: theirs.latestOffset(end, FIVE),
            "commit": lambda: theirs.commit(end),
        }
        with pytest.raises(InvalidConfiguration, match=r"'orders\|json'.*'beta\|json'"):
            steps[step]()
        theirs.stop()
        after = set(Message.objects.values_list("kind", "key", "lease_id", "scheduled_at"))
        assert after == before

    def test_is_refused_when_it_is_of_another_database(
        self, queue: DelayedQueue, after: LeasingReader
    ):
        start, end = self.offsets(queue)
        with pytest.raises(InvalidConfiguration, match=r"database 'shop'.*database 'test_"):
            after.partitions(start, {**end, "database": "shop"})

    def test_an_offset_that_names_no_queue_is_refused(
        self, queue: DelayedQueue, source: LeasingReader
    ):
        fill(queue, 1)
        with pytest.raises(InvalidConfiguration, match="of the queue None"):
            source.latestOffset({"n": 7, "lock": "gone", "next": ""}, FIVE)


class TestAnotherQueuesMessageUnderTheLease:
    """The drain never reads, handles or takes it over."""

    def mixed(self, queue: DelayedQueue) -> str:
        """Return a lease with one message of each of two queues."""
        queue.offer_or_update("ours", 1)
        DelayedQueue("beta").offer_or_update("theirs", 1)
        Message.objects.update(lease_id="lease")
        return "lease"

    def test_is_not_read(self, queue: DelayedQueue, source: LeasingReader):
        start = source.initialOffset()
        end = {**start, "n": 1, "lock": self.mixed(queue)}
        assert read(source, start, end) == ["ours"]

    def test_is_not_taken_over(self, queue: DelayedQueue, source: LeasingReader):
        start = {**source.initialOffset(), "n": 1, "next": self.mixed(queue)}
        end = source.latestOffset(start, FIVE)
        assert under(end["lock"]) == {"ours"}
        assert under("lease") == {"theirs"}

    def test_is_not_handled(self, queue: DelayedQueue, other: psycopg.Connection[Any]):
        lease_id, key = self.mixed(queue), JobKey("query")
        ids = list(Message.objects.values_list("id", flat=True))
        handling = Handling(f"{TARGETS}:answering", "orders")
        with steady() as connection, Calls(handling) as calls:
            Settler(connection, handling, "orders|json", Place(key), calls).handle(lease_id, ids)
        assert (ended_of(key), keys_of(other)) == ({"done": 1}, ["theirs"])


class Sharing(RuleBasedStateMachine):
    """Drains of two queues that die at any step, and start again, with one checkpoint or two.

    The test drives them as Spark does: it logs an offset before its batch runs, and commits a batch
    after its sink. Only then it requests the next offset. The sink is Spark's own for files: a
    batch whose number it has is not written again.
    """

    @initialize(count=st.integers(1, 6), shared=st.sampled_from(["checkpoint", "lake"]))
    def begin(self, count: int, shared: str) -> None:
        Message.objects.all().delete()
        for name in QUEUES:
            DelayedQueue(name).offer_batch(
                [ScheduledMessage(f"{name}-{each}", 1) for each in range(count)]
            )
        self.keys = {name: {f"{name}-{each}" for each in range(count)} for name in QUEUES}
        # In a lake each queue has its own checkpoint and directory, as drain creates them.
        self.places = {name: "both" if shared == "checkpoint" else name for name in QUEUES}
        self.logs: dict[str, list[Any]] = {}
        self.commits: Counter[str] = Counter()
        self.files: dict[tuple[str, str, int], list[str]] = {}

    @rule(name=st.sampled_from(QUEUES), step=st.sampled_from(STEPS), most=st.integers(1, 4))
    def drain(self, name: str, step: str, most: int) -> None:
        before = self.of(name)
        source = reader(queue=name, leaseConnections="1")
        try:
            self.run(source, name, step, most)
        except InvalidConfiguration:
            # The checkpoint belongs to the other queue: as the error advises, use an own one from
            # here on.
            assert self.places[name] == "both"
            assert self.of(name) == before
            self.places[name] = name
        finally:
            source.stop()

    def of(self, name: str) -> set[tuple[str, str | None, int]]:
        rows = Message.objects.filter(kind=f"{name}|json")
        return set(rows.values_list("key", "lease_id", "attempts"))

    def run(self, source: Any, name: str, step: str, most: int) -> None:
        """Run until the step, or to the end."""
        source.prepareForTriggerAvailableNow()
        for reached in self.steps(source, name, most):
            if reached == step:
                return

    def steps(self, source: Any, name: str, most: int) -> Iterator[str]:
        place = self.places[name]
        log = self.logs.setdefault(place, [source.initialOffset()])
        while True:
            if self.commits[place] == len(log) - 1:
                end = source.latestOffset(log[-1], ReadMaxRows(most))
                if end == log[-1]:
                    return
                if end["next"]:
                    settled(source)
                yield "leased"
                log.append(end)
            yield "logged"
            found = read(source, *log[-2:])
            yield "read"
            self.files.setdefault((place, name, len(log) - 2), found)
            yield "written"
            self.commits[place] = len(log) - 1
            yield "committed"

    def teardown(self) -> None:
        if not hasattr(self, "logs"):
            return
        while Message.objects.exists():
            for name in QUEUES:
                self.drain(name, "done", 4)
            # Messages that a dead process had leased and not logged: no batch holds them.
            logged = {each[part] for log in self.logs.values() for each in log
                      for part in ("lock", "next")}  # fmt: skip
            lost = Message.objects.exclude(lease_id__in=logged)
            lost.update(lease_id=None, scheduled_at=lost.values("created_at")[:1])
        for name in QUEUES:
            of_name = [keys for (_, kind, _), keys in self.files.items() if kind == name]
            assert Counter(key for keys in of_name for key in keys) == Counter(self.keys[name])


def test_two_queues_that_share_a_place_have_each_message_once_under_its_own_name():
    run_state_machine_as_test(
        Sharing,
        settings=settings(
            max_examples=6 * ROUNDS,
            stateful_step_count=8,
            deadline=None,
            derandomize=ROUNDS == 1,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
