"""SIGKILL, cut and terminated connections while members of a batch finish (B7)."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Final

import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message, StoredBatch
from tests.support.aiming import ACKNOWLEDGE, Aim, Stage
from tests.support.ledger import expire_leases, terminate_backends, wait_until_quiet
from tests.support.programs import Program, kill, suspended, wait_while_tending, working
from tests.support.proxy import Proxy
from tests.support.sampling import sample
from tests.workerapp.models import Effect

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.slow,
    pytest.mark.usefixtures("each_round"),
]

COUNT: Final = r"numbers AS MATERIALIZED"
FINISH: Final = r"finished AS \("
POINTS: Final = {
    "before the count is sent": (COUNT, Stage.UNSENT),
    "behind the count": (COUNT, Stage.EXECUTED),
    "behind the acknowledgement": (ACKNOWLEDGE, Stage.EXECUTED),
    "behind the finish, before the commit": (FINISH, Stage.EXECUTED),
    "behind the commit, before its answer": (FINISH, Stage.COMMITTED),
}
# Small claims, so that there are several; a lease that ends only when the test expires it.
OPTIONS: Final = ("--queue", "ledger", "--lease", "600", "--batch-size", "5", "--concurrency", "1")
MEMBERS: Final = 30
LAST: Final = ScheduledMessage("last", 0, timezone.now() + timedelta(days=1))


def fill(count: int, *deferred: ScheduledMessage) -> None:
    """Close a batch whose ``then`` goes to a queue without a worker."""
    queue = DelayedQueue("ledger")
    with queue.batch(ScheduledMessage("then", 1), then_queue=DelayedQueue("reports")) as batch:
        batch.offer_batch([*(ScheduledMessage(f"k{n}", n) for n in range(count)), *deferred])


def aimed_at_the_last(proxy: Proxy, worker: Program, point: str) -> Aim:
    """Aim at the settlement of the deferred member, once all others have ended.

    One statement settles the members of one or of several claims, so they cannot be counted.
    """
    wait_while_tending(worker, lambda: Message.objects.filter(kind="ledger|json").count() == 1)
    wait_until_quiet()
    aim = proxy.aim_at(*POINTS[point])
    hasten_the_last()
    return aim


def hasten_the_last() -> None:
    Message.objects.filter(key="last").update(scheduled_at=timezone.now())


def has_finished() -> bool:
    return not StoredBatch.objects.exists() and not Message.objects.filter(kind="ledger|json")


def check_then(count: int) -> None:
    """Check that ``then`` was offered once, and its counts."""
    (then,) = Message.objects.all()
    assert then.key == "then"
    # A second offer would be a later version of the message.
    assert then.version_at == then.created_at
    assert then.headers is not None
    header = then.headers["batch"]
    assert (header["total"], header["done"]) == (count, count)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("point", sample(POINTS, "behind the finish, before the commit"))
def test_b7_a_worker_killed_there_offers_one_then(proxy, point, is_last):
    fill(MEMBERS, LAST)
    aim = None if is_last else proxy.aim_at(*POINTS[point], nth=2)
    with working(*OPTIONS, url=proxy.url) as worker:
        victim = suspended(worker, aim or aimed_at_the_last(proxy, worker, point))
        wait_until_quiet()
        kill(victim)
        expire_leases()
        hasten_the_last()
        wait_while_tending(worker, has_finished)
    check_then(MEMBERS + 1)


@pytest.mark.parametrize("point", sample(POINTS, "behind the commit, before its answer"))
def test_b7_a_worker_cut_off_there_offers_one_then(proxy: Proxy, point: str) -> None:
    fill(MEMBERS, LAST)
    with working(*OPTIONS, url=proxy.url) as worker:
        aimed_at_the_last(proxy, worker, point).wait()
        wait_until_quiet()
        proxy.cut_aimed()
        wait_while_tending(worker, has_finished)
    check_then(MEMBERS + 1)


@pytest.mark.parametrize(
    ("count", "kills", "batch_size"),
    [(3_000, 5, "20"), pytest.param(100_000, 20, "500", marks=pytest.mark.long)],
)
def test_b7_members_with_kills_offer_one_then_with_true_counts(count, kills, batch_size):
    """Each member is counted when it is settled, so a repeated delivery counts once."""
    fill(count)
    options = ("--queue", "ledger", "--lease", "1", "--processes", "2", "--batch-size", batch_size)
    with working(*options) as worker:
        for number in range(1, kills + 1):
            seen = count * number // (kills + 2)
            wait_while_tending(worker, partial(_has_moved, seen))
            if len(processes := worker.tree()) > 1:
                kill(processes[-1])
            terminate_backends()
        wait_while_tending(worker, has_finished)
    check_then(count)


def _has_moved(effects: int) -> bool:
    return Effect.objects.count() >= effects or has_finished()
