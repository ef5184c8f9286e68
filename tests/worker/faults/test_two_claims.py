"""Two concurrent round trips of a worker, and faults of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from delayed_queue import DelayedQueue, Envelope, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.worker.engine.serving import declare_groups
from delayed_queue.worker.engine.settling import Counts
from delayed_queue.worker.engine.worker import Worker
from tests.support.aiming import ACKNOWLEDGE, CLAIM, Aim, Stage
from tests.support.concurrency import raw_connection
from tests.support.operations import PAST
from tests.support.processes import wait_until
from tests.support.proxy import Proxy
from tests.support.running import handler_of, running, worker_with

HOUR = timedelta(hours=1)
BATCH = 10
COUNT = 100


def note(envelope: Envelope) -> None:
    """Handle the message without an effect."""


def offer(queue: DelayedQueue, count: int = COUNT) -> None:
    queue.offer_batch([ScheduledMessage(f"k{each:03}", None, PAST) for each in range(count)])


def worker_of(**options: Any) -> Worker:
    """Return a worker with more threads than a batch needs, so that each claim is a full batch."""
    claim = {"claim": options.pop("claim")} if "claim" in options else {}
    defaults = {"lease": HOUR, "concurrency": 5 * BATCH, "batch_size": BATCH}
    return worker_with(handler_of("faults", note, **claim), **{**defaults, **options})


def leases() -> set[str]:
    """Return the leases of messages that are leased now."""
    held = Message.objects.exclude(lease_id=None).values_list("lease_id", flat=True)
    return {str(each) for each in held}


def claimers() -> int:
    """Return the number of sessions whose last statement was a claim."""
    asked = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND query LIKE '%SET \"lockUuid\" = CASE%'"
        " AND datname = current_database()"
    )
    with connection.cursor() as cursor:
        cursor.execute(asked)
        return int(cursor.fetchone()[0])


@contextmanager
def held_at(aim: Aim, proxy: Proxy, worker: Worker) -> Iterator[None]:
    """Run the worker; within the block, the aimed statement is held."""
    with running(worker):
        aim.wait()
        try:
            yield
        finally:
            proxy.let_go()


def first_of_two(proxy: Proxy) -> Aim:
    """Hold the answer to the first of two claims; a full batch causes the second."""
    return proxy.aim_at(CLAIM, Stage.COMMITTED, nth=2)


class TestBeside:
    def test_while_the_answer_to_one_is_on_its_way_the_next_is_made(self, queue, proxy):
        """And both are on the board before the answers list the leased messages."""
        offer(queue)
        worker = worker_of()
        aim = first_of_two(proxy)
        with running(worker):
            aim.wait()
            wait_until(lambda: len(set(worker.board.held()) & leases()) >= 2)
            assert leases() <= set(worker.board.held())
            proxy.let_go()
            wait_until(lambda: not Message.objects.exists())
        assert worker.counts == Counts(done=COUNT)

    @pytest.mark.parametrize(
        ("options", "sessions"), [({}, 3), ({"claims": 1}, 1), ({"concurrency": 1}, 1)], ids=str
    )
    def test_one_session_makes_the_claims_where_one_at_a_time_is_wanted(
        self, queue: DelayedQueue, options: dict[str, Any], sessions: int
    ):
        offer(queue)
        worker = worker_of(**options)
        with running(worker):
            wait_until(lambda: worker.counts.done == COUNT)
            wait_until(lambda: claimers() == sessions)

    def test_one_session_where_no_batch_fills(self, queue: DelayedQueue):
        offer(queue, BATCH)
        worker = worker_of(batch_size=COUNT)
        with running(worker):
            wait_until(lambda: worker.counts.done == BATCH)
            wait_until(lambda: claimers() == 1)

    @pytest.mark.parametrize(("claim", "is_alone"), [("fast", False), ("strict", True)])
    def test_a_strict_claim_has_no_other_of_its_queue_beside_it(self, queue, claim, is_alone):
        worker = worker_of(claim=claim)
        dispatcher = worker.dispatcher
        declare_groups(worker.consumers[0])
        first = dispatcher.plan()
        assert first is not None
        assert (dispatcher.plan() is None) == is_alone
        dispatcher.end_plan(first)
        assert dispatcher.plan() is not None

    def test_a_claim_on_its_way_counts_for_the_most_messages(self, queue: DelayedQueue):
        offer(queue)
        assert worker_of(max_messages=35).run() == Counts(done=35)
        assert Message.objects.filter(attempts=0, lease_id=None).count() == COUNT - 35


class TestFaults:
    def test_an_acknowledgement_whose_answer_was_swallowed_is_not_counted_as_lost(
        self, queue: DelayedQueue, proxy: Proxy
    ):
        """Nor as one in doubt, if the other one was answered."""
        offer(queue)
        worker = worker_of()
        proxy.swallow_answer(f"DELETE {BATCH}")
        with running(worker):
            wait_until(lambda: worker.counts.total == COUNT)
        assert proxy.swallowed_tag is None
        assert worker.counts == Counts(done=COUNT)
        assert not Message.objects.exists()

    def test_what_a_claim_leased_whose_answer_was_swallowed_comes_back_at_once(self, queue, proxy):
        """Both, when both are lost; and as a first attempt: no handler has seen it."""
        offer(queue)
        worker = worker_of()
        aim = first_of_two(proxy)
        with running(worker):
            aim.wait()
            wait_until(lambda: len(leases()) >= 2)
            proxy.cut()
            connection.close()  # it broke as well
            wait_until(lambda: worker.counts.total == COUNT)
        assert worker.counts == Counts(done=COUNT)
        assert not Message.objects.exists()

    def test_what_a_claim_left_that_was_lost_before_its_commit_is_found(self, queue, proxy):
        """Its messages lie before those of the other claim, where the next claim would start."""
        offer(queue)
        worker = worker_of()
        aim = proxy.aim_at(CLAIM, Stage.EXECUTED, nth=2)
        with running(worker):
            aim.wait()
            behind = Message.objects.filter(key__gte=f"k{2 * BATCH:03}")
            wait_until(lambda: behind.exclude(lease_id=None).exists())
            proxy.cut()
            connection.close()  # it broke as well
            wait_until(lambda: worker.counts.total == COUNT)
        assert worker.counts == Counts(done=COUNT)
        assert not Message.objects.exists()

    def test_a_stop_waits_for_both_and_gives_back_what_they_brought(self, queue, proxy):
        offer(queue)
        worker = worker_of()
        with held_at(first_of_two(proxy), proxy, worker):
            wait_until(lambda: len(leases()) >= 2)
            worker.stop()
        left = Message.objects.filter(attempts=0, lease_id=None)
        assert left.count() == COUNT - worker.counts.done

    def test_what_somebody_holds_holds_up_no_other(self, queue: DelayedQueue, proxy: Proxy):
        offer(queue)
        worker = worker_of()
        aim = proxy.aim_at(ACKNOWLEDGE, Stage.UNSENT)
        with running(worker), raw_connection() as other:
            aim.wait()
            other.execute("BEGIN")
            # A message leased first: it is in the held acknowledgement.
            other.execute("SELECT 1 FROM delayed_queue WHERE \"pKey\" = 'k000' FOR UPDATE")
            proxy.let_go()
            wait_until(lambda: worker.counts.done == COUNT - 1)
            other.execute("COMMIT")
            wait_until(lambda: worker.counts.done == COUNT)
        assert worker.counts == Counts(done=COUNT)
