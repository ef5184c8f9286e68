"""Tasks that expire before they are run (Q37)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks._api import InvalidTask, TaskResultStatus
from delayed_queue.tasks.testing import drain
from delayed_queue.worker.engine.settling import Counts
from tests.tasks.conftest import configured, drained

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("both_paths")]
EXPIRED = "delayed_queue.tasks.policies.Expired"
HOUR = timedelta(hours=1)


def let_expire() -> None:
    """Let all tasks expire by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute('UPDATE delayed_queue SET "expiresAt" = "createdAt" - 1')


def run_by_a_worker() -> None:
    drained()


def run_by_a_test() -> None:
    drain()


RUNS = [run_by_a_worker, run_by_a_test]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", ["add", "aadd"])
def test_q37_an_expired_task_is_not_run_and_its_result_reports_it(work, run, name):
    task = getattr(work, name)
    result, other = task.using(expires_in="1h").enqueue(1), task.using(priority=3).enqueue(2)
    let_expire()
    Message.objects.filter(kind="default!3|json").update(expires_at=None)
    run()
    found = task.get_result(result.id)
    assert (found.status, found.errors[0].exception_class_path) == ("FAILED", EXPIRED)
    assert "expired before it was run" in found.errors[0].traceback
    assert found.finished_at is not None
    assert task.get_result(other.id).status == TaskResultStatus.SUCCESSFUL
    assert [each[0] for each in work.said] == [2]
    assert not Message.objects.exists()
    assert not DeadLetter.objects.exists()


def test_q37_a_worker_counts_it_as_expired(work: Any) -> None:
    work.add.using(expires_in=3600).enqueue(1)
    let_expire()
    assert drained() == Counts(expired=1)


@pytest.mark.parametrize("run", RUNS)
def test_q37_a_retry_that_expires_keeps_the_errors_before_it(work: Any, run: Any) -> None:
    result = work.thrice.using(expires_in="1h").enqueue()
    Message.objects.update(attempts=1)
    let_expire()
    run()
    found = work.thrice.get_result(result.id)
    assert found.errors[-1].exception_class_path == EXPIRED
    assert work.said == []


def test_q37_without_results_it_is_deleted(settings: Any, work: Any) -> None:
    settings.TASKS = configured(RESULTS=None)
    work.add.using(expires_in="1h").enqueue(1)
    let_expire()
    assert drained() == Counts(expired=1)
    assert not Message.objects.exists()


def test_q37_the_expiry_is_stored_by_every_way_to_enqueue(work: Any, backend: Any) -> None:
    at = timezone.now().replace(microsecond=0) + HOUR
    fixed, relative = work.add.using(expires_at=at), work.add.using(expires_in=HOUR)
    fixed.enqueue(1)
    relative.enqueue(2)
    backend.enqueue_many(fixed, [3])
    backend.enqueue_many(relative, [4])
    work.once.using(expires_at=at).enqueue("a")
    work.fleeting.enqueue()
    work.fleeting.using(expires_at=at).enqueue()
    stored = [each.expires_at for each in Message.objects.order_by("id")]
    assert [each == at for each in stored] == [True, False, True, False, True, False, True]
    assert all(abs(each - at) < timedelta(minutes=1) for each in stored)


def test_q37_a_unique_task_that_has_expired_is_replaced(work: Any) -> None:
    first = work.once.using(expires_in="1h").enqueue("a", 1)
    assert work.once.enqueue("a", 2).args == ["a", 1]
    let_expire()
    second = work.once.enqueue("a", 3)
    assert (second.id, second.args) == (first.id, ["a", 3])
    assert drained() == Counts(done=1)
    assert work.said == [("a", 3)]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"expires_at": timezone.now().replace(tzinfo=None)}, "aware datetime"),
        ({"expires_at": timezone.now() - HOUR}, "at or before its due time"),
        ({"expires_in": 0}, "more than 0"),
        ({"expires_in": "soon"}, "more than 0"),
        ({"expires_in": timedelta.max}, "outside the years"),
        ({"expires_in": "1h", "run_after": timezone.now() + 2 * HOUR}, "at or before its due time"),
        ({"expires_in": "1h", "expires_at": timezone.now() + HOUR}, "one or the other"),
    ],
)
def test_q37_an_expiry_that_cannot_be_is_refused(work, backend, options, match):
    with pytest.raises(InvalidTask, match=f"tests.tasks.work.add.*{match}"):
        work.add.using(**options).enqueue(1)
    with pytest.raises(InvalidTask, match=f"tests.tasks.work.add.*{match}"):
        backend.enqueue_many(work.add.using(**options), [1])
    assert not Message.objects.exists()
