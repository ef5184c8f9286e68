"""Hosts whose clock is days off: the database's clock decides on retention and due times."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import time_machine
from django.db import connection

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.cron.keeper import CronEntry, CronKeeper
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.http.jobs.adding import add_job
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Message, Sample
from delayed_queue.observe import store
from delayed_queue.observe.store import SAMPLES_BY_DAY, CountsRow
from delayed_queue.tasks._api import TaskResultStatus
from delayed_queue.tasks.keeping import keep_days
from delayed_queue.tasks.models import TaskResult
from tests.support.processes import ROOT, Process, environment, killed_at_last, wait_until
from tests.tasks.conftest import drained

pytestmark = pytest.mark.django_db(transaction=True)

DAYS = pytest.mark.parametrize("days", [-40, 40], ids=["behind", "ahead"])
RESULTS, SAMPLES = "delayed_queue_task_result", "delayed_queue_sample"

# Each use of a host's clock in the package. None of them decides on due times or retention.
CLOCKS: Final = re.compile(
    r"(datetime|timezone)\.now\(|time\.time(_ns)?\(|utcnow\(|\.today\(|time\.(local|gm)time\("
)
HOST: Final = {
    "http/jobs/adding.py": "the hint to wake a poller",
    "http/jobs/requests.py": "the bound of ten years",
    "messages.py": "the text of an error",
    "observe/metrics.py": "the lateness of deliveries as a metric",
    "queue/base.py": "the hint to wake a poller, and the bound of a delay",
    "spark/pipeline/manifests.py": "the name of a directory",
    "spark/pipeline/offers.py": "the bound of the last schedule",
    "spark/pipeline/records.py": "the bound of a delay",
    "tasks/policies.py": "the text of an error",
    "tasks/run.py": "the times that a task sees of itself while it runs",
    "testing/factories.py": "rows of tests",
    "testing/stores.py": "the queue in memory",
    "worker/process/health.py": "the age of a file of this host",
}


def test_each_use_of_the_hosts_clock_is_known() -> None:
    package = ROOT / "delayed_queue"
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if CLOCKS.search(path.read_text(encoding="utf-8"))
    }
    assert found == HOST.keys()


@pytest.fixture(autouse=True)
def without_days() -> Iterator[None]:
    drop_days()
    yield
    drop_days()


def days_of(table: str) -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = %s::regclass",
            [table],
        )
        return {row[0].rpartition("_")[2] for row in cursor.fetchall()} - {"rest"}


def drop_days() -> None:
    with connection.cursor() as cursor:
        for table in (RESULTS, SAMPLES):
            for day in days_of(table):
                cursor.execute(f"DROP TABLE {table}_{day}")


@contextmanager
def host(days: int, *command: str) -> Iterator[Process]:
    """Run a command on a host whose clock is days off."""
    variables = {**environment(), "DJANGO_SETTINGS_MODULE": "tests.tasks.settings"}
    program = (sys.executable, "-m", "tests.support.wrong_clock", str(days), *command)
    with killed_at_last(Process(*program, env=variables)) as process:
        yield process


@pytest.mark.slow
@DAYS
def test_a_worker_with_a_wrong_clock_drops_no_result(work: Any, days: int) -> None:
    """It creates partitions by the database's date, and drops those that are too old by it."""
    result = work.add.enqueue(1, 2)
    drained()
    assert keep_days("default")
    made = days_of(RESULTS)
    with connection.cursor() as cursor:  # the worker makes the last day
        cursor.execute(f"DROP TABLE {RESULTS}_{max(made)}")
    with host(days, "runqueueworker", "--processes", "0", "--poll-interval", "0.2"):
        later = work.add.enqueue(3, 4)
        wait_until(lambda: work.add.get_result(later.id).is_finished)
        wait_until(lambda: days_of(RESULTS) == made)
    later.refresh()
    assert abs(later.finished_at - datetime.now(UTC)) < timedelta(hours=1)
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL


@DAYS
def test_a_wrong_clock_drops_no_sample(days: int) -> None:
    store.add_counts([CountsRow("a|json", 1, 0, 0, "{}")])
    assert SAMPLES_BY_DAY.keep(timedelta(days=8))
    made = days_of(SAMPLES)
    with time_machine.travel(datetime.now(UTC) + timedelta(days=days)):
        assert SAMPLES_BY_DAY.keep(timedelta(days=8))
    assert days_of(SAMPLES) == made
    assert Sample.objects.filter(kind="a|json").exists()


@DAYS
def test_a_keeper_with_a_wrong_clock_installs_the_ticks_of_the_database(days: int) -> None:
    keeper = CronKeeper(entries=[CronEntry("reports", "hourly", "@hourly")])
    with time_machine.travel(datetime.now(UTC) + timedelta(days=days)):
        assert [each.error for each in keeper.check(force=True)] == [""]
    (first, *_) = Message.objects.order_by("scheduled_at")
    assert timedelta(0) <= first.scheduled_at - datetime.now(UTC) <= timedelta(hours=1)


@DAYS
def test_a_result_is_kept_whatever_clock_its_producer_has(work: Any, days: int) -> None:
    with time_machine.travel(datetime.now(UTC) + timedelta(days=days)):
        result = work.add.enqueue(1, 2)
    drained()
    assert keep_days("default")
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert abs(result.enqueued_at - datetime.now(UTC)) < timedelta(hours=1)
    assert TaskResult.objects.count() == 1


@DAYS
def test_q37_an_expiry_is_judged_by_the_clock_of_the_database(
    work: Any, backend: Any, days: int
) -> None:
    queue, hour = DelayedQueue("orders"), timedelta(hours=1)
    later, earlier = datetime.now(UTC) + hour, datetime.now(UTC) - hour
    job = {"topic": "orders", "jobId": "job", "expiresAt": later.isoformat()}
    with time_machine.travel(datetime.now(UTC) + timedelta(days=days)):
        queue.offer_or_update("at", 1, expires_at=later)
        queue.offer_or_update("in", 1, schedule_at=later, expires_in=2 * hour)
        queue.offer_batch([ScheduledMessage("batch", 1, expires_at=later)])
        backend.enqueue_many(work.add.using(expires_in=hour), [(1, 2)])
        add_job(job_from(job))
        for times in ({"expires_at": earlier}, {"schedule_at": later, "expires_in": hour / 2}):
            with pytest.raises(InvalidMessage, match="would expire"):
                queue.offer_or_update("refused", 1, **times)
    assert Message.objects.filter(expires_at__gte=later - hour).count() == 5
