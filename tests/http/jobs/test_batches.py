"""Jobs that are members of batches: every way in which one ends counts (B10)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import connection
from django.db.models import F

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.http.jobs.adding import delete_job
from delayed_queue.http.jobs.catalogue import configure_topic
from delayed_queue.http.jobs.consuming import bury_job, finish_job, release_job
from delayed_queue.http.jobs.dead import delete_dead_job, kick_job
from delayed_queue.http.jobs.jobs import Answer
from delayed_queue.models import DeadLetter, Message, StoredBatch
from delayed_queue.queue.batches import MessageBatch
from tests.http.jobs.support import URL, add, pop_jobs, popped
from tests.support.statements import STATEMENTS

pytestmark = pytest.mark.django_db(transaction=True)
THEN: Final = ScheduledMessage("then", 1)


def batch_of(*keys: str, on_dead: str = "then") -> MessageBatch:
    """Return a closed batch of jobs of the topic "orders"."""
    orders, reports = DelayedQueue("orders"), DelayedQueue("reports")
    with orders.batch(THEN, then_queue=reports, on_dead=on_dead) as batch:
        for key in keys:
            batch.offer_or_update(key, 1)
    return batch


def counts() -> dict[str, int] | None:
    """Return the counts of the one batch that has finished, those that are not zero."""
    then = DelayedQueue("reports").read("then")
    if then is None:
        return None
    assert not StoredBatch.objects.exists()
    given = then.headers["batch"]
    return {name: value for name, value in given.items() if value and name != "id"}


def let_expire() -> None:
    Message.objects.filter(kind="orders|json").update(expires_at=F("created_at") - 1)


def finish() -> None:
    assert finish_job("orders", "a", popped().lease_token) is Answer.DONE


def bury() -> None:
    assert bury_job("orders", "a", popped().lease_token) is Answer.DONE


def exhaust() -> None:
    token = popped().lease_token
    Message.objects.update(attempts=99)
    assert release_job("orders", "a", token) is Answer.DONE


def lose_the_last_lease() -> None:
    Message.objects.update(attempts=99)
    assert pop_jobs("orders") == []


def spoil() -> None:
    Message.objects.filter(key="a").update(payload=b"{")
    assert pop_jobs("orders") == []


def expire() -> None:
    let_expire()
    assert pop_jobs("orders") == []


def delete() -> None:
    assert delete_job("orders", "a")


WAYS: Final[dict[str, tuple[Callable[[], None], str]]] = {
    "finished": (finish, "done"),
    "buried": (bury, "dead"),
    "exhausted": (exhaust, "dead"),
    "lost": (lose_the_last_lease, "dead"),
    "not decodable": (spoil, "dead"),
    "expired": (expire, "expired"),
    "deleted": (delete, "dropped"),
}


class TestEnds:
    @pytest.mark.parametrize("way", WAYS)
    def test_b10_each_way_counts_at_once(self, way: str):
        end, outcome = WAYS[way]
        batch_of("a")
        assert counts() is None
        end()
        assert counts() == {"total": 1, outcome: 1}

    @pytest.mark.parametrize("way", WAYS)
    def test_b7_then_waits_for_the_others(self, way: str):
        end, outcome = WAYS[way]
        batch_of("a", "b")
        Message.objects.filter(key="b").update(scheduled_at=F("scheduled_at") + 10**9)
        end()
        assert counts() is None
        assert delete_job("orders", "b")
        assert counts() == {"total": 2, "dropped": 1 + (outcome == "dropped")} | (
            {} if outcome == "dropped" else {outcome: 1}
        )

    def test_b10_a_stale_lease_counts_nothing(self):
        batch_of("a")
        token = popped().lease_token
        assert finish_job("orders", "a", "other") is Answer.STALE
        assert release_job("orders", "a", token, delay=timedelta(0)) is Answer.DONE
        assert finish_job("orders", "a", token) is Answer.STALE
        assert counts() is None
        finish()
        assert finish_job("orders", "a", token) is Answer.MISSING
        assert counts() == {"total": 1, "done": 1}

    def test_b10_a_member_of_a_cancelled_batch_is_an_ordinary_job(self):
        batch = batch_of("a")
        batch.cancel()
        finish()
        assert counts() is None


class TestWaitingForDead:
    @pytest.fixture
    def dead(self) -> int:
        batch_of("a", on_dead="wait")
        bury()
        assert counts() is None
        return DeadLetter.objects.get().pk

    def test_b10_a_kicked_job_counts_again(self, dead: int):
        assert kick_job("orders", "a") == 1
        finish()
        assert counts() == {"total": 1, "done": 1}

    def test_b10_a_deleted_job_stays_dead(self, dead: int):
        assert delete_job("orders", "a")
        assert counts() == {"total": 1, "dead": 1}
        assert not DeadLetter.objects.exists()

    def test_b10_so_does_one_that_is_deleted_as_a_dead_one(self, dead: int):
        assert delete_dead_job(dead)
        assert counts() == {"total": 1, "dead": 1}

    def test_b10_a_deletion_takes_the_dead_and_the_new_one(self, dead: int):
        DelayedQueue("orders").offer_or_update("a", 2)
        assert delete_job("orders", "a")
        assert counts() == {"total": 1, "dead": 1}
        assert not Message.objects.filter(key="a").exists()


class TestReplacing:
    def test_b10_the_replacing_job_takes_the_place(self):
        batch_of("a")
        add("a", body=2, if_exists="update")
        assert counts() is None
        finish()
        assert counts() == {"total": 1, "done": 1}

    def test_b10_so_does_one_in_another_kind(self):
        batch_of("a")
        add("a", url=URL, if_exists="update")
        assert Message.objects.get(key="a").kind == "orders|callback"
        assert counts() is None
        assert delete_job("orders", "a")
        assert counts() == {"total": 1, "dropped": 1}

    def test_b10_a_job_that_was_not_replaced_stays_a_member(self):
        batch_of("a")
        assert add("a", if_exists="ignore").outcome is not None
        assert Message.objects.get(key="a").batch_id is not None


NAMES: Final = {text: name for name, text in STATEMENTS.items()}


def statements(call: Callable[[], Any]) -> list[str]:
    """Return the names of the statements that the call runs."""
    ran: list[str] = []

    def note(execute: Any, statement: str, *rest: Any) -> Any:
        ran.append(NAMES.get(statement, ""))
        return execute(statement, *rest)

    with connection.execute_wrapper(note):
        call()
    return [each for each in ran if each not in {"", "NOTIFY", "RULES"}]


def test_b11_a_job_in_no_batch_runs_the_statements_of_before():
    configure_topic("orders")
    assert statements(lambda: add("a")) == ["KEEP_PLANS", "LOCK_JOBS", "ADD_JOBS"]
    assert statements(lambda: add("a", body=2, if_exists="update")) == ["LOCK_JOBS", "PUT_JOBS"]
    (job,) = pop_jobs("orders")
    assert statements(lambda: finish_job("orders", "a", job.lease_token)) == [
        "FIND_JOB", "ACKNOWLEDGE"
    ]  # fmt: skip
    add("b")
    (job,) = pop_jobs("orders")
    assert statements(lambda: bury_job("orders", "b", job.lease_token)) == [
        "FIND_JOB", "DEAD_LETTER"
    ]  # fmt: skip
    assert statements(lambda: delete_job("orders", "b")) == [
        "LOCK_JOBS", "DROP_JOB", "DROP_DEAD_JOB"
    ]  # fmt: skip
    add("c", expiresIn=60)
    let_expire()
    assert statements(lambda: pop_jobs("orders")) == ["POP_JOBS", "ACKNOWLEDGE", "POP_JOBS"]
