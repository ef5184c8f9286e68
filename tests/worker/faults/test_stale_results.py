"""Workers that come back after their leases ended: their writes are refused (W3, W4)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, Final

import psutil
import psycopg
import pytest

from delayed_queue import Batch, DelayedQueue
from delayed_queue.models import DeadLetter, Message
from tests.support.aiming import ACKNOWLEDGE, Stage
from tests.support.ledger import effects, expire_leases, is_drained, offer
from tests.support.processes import wait_until
from tests.support.programs import Program, stop, working
from tests.support.proxy import Proxy
from tests.workerapp.handlers import GATE
from tests.workerapp.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

SMALL: Final = ("--batch-size", "5", "--concurrency", "4")


def taken_over(queue: DelayedQueue, count: int) -> Batch:
    """Lease ``count`` messages as another consumer would."""
    wait_until(lambda: _are_due(queue, count))
    batch = queue.try_poll_many(count)
    assert len(batch) == count
    return batch


def _are_due(queue: DelayedQueue, count: int) -> bool:
    return queue.stats().due == count


def close_gate(other: psycopg.Connection[Any]) -> None:
    other.execute("SELECT pg_advisory_lock(%s)", [GATE])


def open_gate(other: psycopg.Connection[Any]) -> None:
    other.execute("SELECT pg_advisory_unlock(%s)", [GATE])


def test_w3_an_acknowledgement_that_arrives_after_the_lease_changes_nothing(proxy: Proxy) -> None:
    """The network holds it until others have the messages, then delivers it."""
    queue = DelayedQueue("ledger", lease_duration=timedelta(hours=1))
    offer(queue, 30)
    aim = proxy.aim_at(ACKNOWLEDGE, Stage.UNSENT)
    one = ("--claims", "1")  # a second claim would run beside the one that is held
    with working("--queue", "ledger", "--lease", "600", *SMALL, *one, url=proxy.url) as worker:
        aim.wait()
        expire_leases()
        batch = taken_over(queue, 30)
        seen = len(proxy.answers)
        proxy.let_go()
        wait_until(lambda: "DELETE 0" in proxy.answers[seen:])
        assert worker.stop() == 0
    assert batch.acknowledge() == 30


def test_w3_a_worker_stopped_longer_than_its_leases_cannot_settle_what_others_hold(proxy, other):
    """SIGSTOP with a batch in flight, SIGCONT after another worker has taken it."""
    queue = DelayedQueue("gated", lease_duration=timedelta(hours=1))
    offer(queue, 20)
    close_gate(other)
    with working("--queue", "gated", "--lease", "1", *SMALL, url=proxy.url) as worker:
        victim = stopped_in_handlers(worker)
        open_gate(other)
        batch = taken_over(queue, 20)
        victim.resume()
        assert worker.stop() == 0
    assert set(Message.objects.values_list("lease_id", flat=True)) == {batch.lease_id}
    assert batch.acknowledge() == 20


def stopped_in_handlers(worker: Program) -> psutil.Process:
    wait_until(lambda: Effect.objects.count() == 4)
    pid = Effect.objects.values_list("pid", flat=True).distinct().get()
    victim = next(each for each in worker.tree() if each.pid == pid)
    stop(victim)
    return victim


def test_w3_a_stopped_workers_messages_are_handled_by_another_and_not_again_by_itself(other):
    """Only the handlers that SIGSTOP interrupted run twice."""
    keys = offer(DelayedQueue("gated"), 20)
    close_gate(other)
    with working("--queue", "gated", "--lease", "1", *SMALL) as first:
        victim = stopped_in_handlers(first)
        started = set(effects())
        open_gate(other)
        with working("--queue", "gated", "--lease", "600", *SMALL):
            wait_until(is_drained)
        victim.resume()
        assert first.stop() == 0
    # It must not start its other claimed messages after their leases.
    assert effects() == Counter(keys) + Counter(started)
    assert not DeadLetter.objects.exists()
