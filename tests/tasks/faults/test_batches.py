"""SIGKILL and cut connections while members of a batch of tasks finish (B7, B8)."""

from __future__ import annotations

from typing import Any, Final

import pytest

from delayed_queue.models import Message, StoredBatch
from delayed_queue.tasks import task_batch
from delayed_queue.tasks.models import TaskResult
from tests.support.aiming import COMMIT, Stage
from tests.support.concurrency import calling
from tests.support.ledger import expire_leases, wait_until_quiet
from tests.support.programs import kill, suspended, wait_while_tending, working
from tests.support.proxy import Proxy
from tests.support.sampling import sample

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

COUNT: Final = r"numbers AS MATERIALIZED"
RECORD: Final = r"recorded AS"
FINISH: Final = r"finished AS \("
POINTS: Final = {
    "before the count is sent": (COUNT, Stage.UNSENT),
    "behind the count": (COUNT, Stage.EXECUTED),
    "behind the results": (RECORD, Stage.EXECUTED),
    "behind the finish, before the commit": (FINISH, Stage.EXECUTED),
    "behind the commit, before its answer": (FINISH, Stage.COMMITTED),
}
# Small claims, so that members are settled several times; a lease that ends only by the test.
OPTIONS: Final = ("--queue", "default", "--lease", "600", "--batch-size", "5", "--concurrency", "1")
SETTINGS: Final = {"DJANGO_SETTINGS_MODULE": "tests.tasks.settings"}
MEMBERS: Final = 30


def filled(work: Any, task: str) -> Any:
    """Return a closed batch whose last task goes to a queue without a worker."""
    with task_batch(work.summarize.using(queue_name="second"), args=["report"]) as batch:
        for each in range(MEMBERS):
            batch.enqueue(getattr(work, task), str(each))
    return batch


def has_finished() -> bool:
    return not StoredBatch.objects.exists() and not Message.objects.filter(kind="default|json")


def check_then(batch: Any, outcome: str = "done", count: int = MEMBERS) -> None:
    """Check that the last task was enqueued once, its counts, and the results of members."""
    (then,) = Message.objects.all()
    assert then.key == batch.then.id
    # A second offer would be a later version of the message.
    assert then.version_at == then.created_at
    assert then.headers is not None
    header = then.headers["batch"]
    assert (header["total"], header[outcome]) == (count, count)
    status = "SUCCESSFUL" if outcome == "done" else "FAILED"
    assert [each.status for each in TaskResult.objects.all()] == [status] * count


@pytest.mark.parametrize("task", ["settle", "pay"])
@pytest.mark.parametrize("point", sample(POINTS, "behind the finish, before the commit"))
def test_b7_a_worker_killed_there_enqueues_one_last_task(
    work: Any, proxy: Proxy, point: str, task: str
) -> None:
    batch = filled(work, task)
    # A transactional task has its own transaction, the others one for each claim.
    aim = proxy.aim_at(*POINTS[point], nth=MEMBERS if task == "pay" else 2)
    with working(*OPTIONS, url=proxy.url, **SETTINGS) as worker:
        victim = suspended(worker, aim)
        wait_until_quiet()
        kill(victim)
        expire_leases()
        wait_while_tending(worker, has_finished)
    check_then(batch)


@pytest.mark.parametrize("point", sample(POINTS, "behind the commit, before its answer"))
def test_b7_a_worker_cut_off_there_enqueues_one_last_task(
    work: Any, proxy: Proxy, point: str
) -> None:
    batch = filled(work, "settle")
    aim = proxy.aim_at(*POINTS[point], nth=2)
    with working(*OPTIONS, url=proxy.url, **SETTINGS) as worker:
        aim.wait()
        wait_until_quiet()
        proxy.cut_aimed()
        wait_while_tending(worker, has_finished)
    check_then(batch)


@pytest.mark.usefixtures("proxied")
@pytest.mark.parametrize(
    ("pattern", "stage"),
    [(FINISH, Stage.EXECUTED), (COMMIT, Stage.UNSENT), (COMMIT, Stage.COMMITTED)],
)
def test_b10_a_cancellation_that_is_cut_off_counts_once(
    work: Any, backend: Any, proxy: Proxy, pattern: str, stage: Stage
) -> None:
    with task_batch(work.summarize.using(queue_name="second"), args=["report"]) as batch:
        result = batch.enqueue(work.add, 1)
    aim = proxy.aim_at(pattern, stage, after="told AS MATERIALIZED")
    with calling(lambda: backend.cancel(result.id)) as call:
        aim.wait()
        proxy.cut_aimed()
        assert call.answer()
    check_then(batch, "dropped", 1)
