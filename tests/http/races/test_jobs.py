"""Jobs: one id over several kinds, under every race that the locks prevent (J3, J5, J6)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.db import InternalError, OperationalError, ProgrammingError, connection, transaction

from delayed_queue import OfferOutcome
from delayed_queue.http.jobs.adding import add_jobs, delete_job, find_job
from delayed_queue.http.jobs.catalogue import configure_topic, create_topic
from delayed_queue.http.jobs.consuming import bury_job, finish_job, release_job, touch_job
from delayed_queue.http.jobs.dead import kick_job, kick_topic
from delayed_queue.http.jobs.jobs import AddedJob, Answer, IfExists
from delayed_queue.http.jobs.kinds import kinds_of_topic
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import Topic
from delayed_queue.http.store.consuming import POP_JOBS
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.store.settle import ACKNOWLEDGE_LEASE, DEAD_LETTER, RELEASE
from tests.http.jobs.support import URL, add, pop_jobs, popped
from tests.http.races.jobs import Connection, hold_job, insert, redriving
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = pytest.mark.usefixtures("new_process")


@pytest.mark.parametrize("if_exists", IfExists)
def test_of_many_posts_of_an_id_with_and_without_url_one_creates(if_exists: IfExists) -> None:
    """J5: in two kinds, which share no unique index."""
    for turn in range(10):
        posts: list[Callable[[], AddedJob]] = [
            partial(add, f"id-{turn}", url=URL if n % 2 else None, if_exists=if_exists, body=n)
            for n in range(8)
        ]
        outcomes = Counter(each.outcome for each in together(posts))
        assert outcomes[OfferOutcome.CREATED] == 1
        assert Message.objects.filter(key=f"id-{turn}").count() == 1


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("url", [None, URL])
def test_a_post_waits_for_another_of_its_id(other, admin, url, end):
    """It then reads the other kind's row: the lock has its own statement."""
    create_topic("orders")
    hold_job(other)
    insert(other, "orders|json" if url else "orders|callback")

    with calling(partial(add, url=url)) as post:
        wait_until_blocked(admin, post)
        other.execute(end)
        assert post.answer().outcome == (None if end == "COMMIT" else "created")


def test_a_post_does_not_wait_for_one_of_another_id(other: Connection) -> None:
    create_topic("orders")
    hold_job(other, "b")
    with calling(partial(add, "a")) as post:
        assert post.answer().outcome == "created"


def test_a_post_that_fails_in_a_callers_transaction_leaves_it_usable(other: Connection) -> None:
    create_topic("orders")
    hold_job(other, "held")
    with transaction.atomic():
        add("before")
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = '50ms'")
        with pytest.raises(OperationalError):
            add("held")
        assert add("after").outcome == "created"
    assert set(Message.objects.values_list("key", flat=True)) == {"before", "after"}


def test_a_post_in_a_transaction_that_is_broken_says_so() -> None:
    create_topic("orders")
    with transaction.atomic():
        with connection.cursor() as cursor, suppress(ProgrammingError):
            cursor.execute("SELECT nothing")
        with pytest.raises(InternalError, match="aborted"):
            add("a")
        transaction.set_rollback(True)
    assert add("a").outcome == "created"


def test_two_bulks_with_the_same_ids_in_opposite_order_do_not_deadlock() -> None:
    jobs = [job_from({"jobId": str(n), "topic": "orders"}) for n in range(100)]
    for _ in range(5):
        answers = together(
            [partial(add_jobs, jobs), partial(add_jobs, jobs[::-1]), partial(add_jobs, jobs)]
        )
        created = sum(each.outcome == "created" for answer in answers for each in answer)
        assert created == 100
        Message.objects.all().delete()


def test_a_message_offered_meanwhile_under_the_id_is_not_overwritten(other, admin):
    """ADD_JOBS: a queue's offer takes no lock; the unique index of the kind protects it."""
    create_topic("orders")
    other.execute("BEGIN")
    insert(other, "orders|json")
    with calling(add) as post:
        wait_until_blocked(admin, post)
        other.execute("COMMIT")
        assert post.answer().outcome is None


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_an_update_waits_for_an_acknowledgement_and_loses_nothing(other, admin, end):
    """PUT_JOBS: the moving job is deleted before or after; either way the new one is stored."""
    add(body=1)
    token = popped().lease_token
    other.execute("BEGIN")
    other.execute(ACKNOWLEDGE_LEASE, {"lease_id": token})
    with calling(partial(add, url=URL, body=2, if_exists="update")) as update:
        wait_until_blocked(admin, update)
        other.execute(end)
        assert update.answer().outcome == ("created" if end == "COMMIT" else "updated")
    assert bytes(Message.objects.get().payload) == b"2"


class TestDeletion:
    """J3: after the 204 the job is gone, in every state that it passed meanwhile."""

    @pytest.mark.parametrize("change", ["dies", "is redriven", "is retried", "moves"])
    def test_j3_a_job_that_changes_meanwhile_is_deleted(self, other, admin, change):
        """As a dead one, as an active one, in its other kind."""
        add()
        ended: dict[str, Any] = {"error": None, "now": None}
        if change in {"dies", "is retried"}:
            ended |= {"lease_id": popped().lease_token, "ids": [Message.objects.get().id]}
            other.execute("BEGIN")
        if change == "dies":
            other.execute(DEAD_LETTER, {**ended, "reason": "no", "fingerprint": ""})
        elif change == "is retried":
            other.execute(RELEASE, {**ended, "delay": 0, "refund": 0})
        elif change == "is redriven":
            bury_job("orders", "a", popped().lease_token)
            redriving(other, DeadLetter.objects.get().id)
        else:
            hold_job(other)
            other.execute("""DELETE FROM delayed_queue WHERE "pKind" = 'orders|json'""")
            insert(other, "orders|callback")
        with calling(partial(delete_job, "orders", "a")) as deletion:
            wait_until_blocked(admin, deletion)
            other.execute("COMMIT")
            assert deletion.answer()
        assert find_job("orders", "a") is None

    def test_j3_a_thousand_deletions_race_four_consumers(self) -> None:
        """Delivered before the answer, or never."""
        add_jobs([job_from({"jobId": str(n), "topic": "orders"}) for n in range(1000)])
        deleted: dict[str, bool] = {}
        late: list[str] = []
        is_over = threading.Event()

        def consume() -> int:
            taken = 0
            while not is_over.is_set():
                # Deletions that were answered before the claim started.
                gone = {job_id for job_id, was_there in list(deleted.items()) if was_there}
                jobs = pop_jobs("orders", 3)
                late.extend(each.job_id for each in jobs if each.job_id in gone)
                taken += sum(
                    finish_job("orders", each.job_id, each.lease_token) is Answer.DONE
                    for each in jobs
                )
            return taken

        def delete(first: int) -> int:
            for n in range(first, 1000, 2):
                deleted[str(999 - n)] = delete_job("orders", str(999 - n))
            if len(deleted) == 1000:
                is_over.set()
            return 0

        finished = sum(together([consume] * 4 + [partial(delete, 0), partial(delete, 1)]))
        assert late == []
        assert finished + sum(deleted.values()) == 1000
        assert 0 < finished < 1000
        assert not Message.objects.exists()


class TestPopping:
    def test_j6_of_a_hundred_pops_exactly_one_gets_the_job(self) -> None:
        add()
        answers: list[int] = []
        for _ in range(10):
            answers += together([lambda: len(pop_jobs("orders"))] * 10)
        assert sum(answers) == 1

    def test_a_pop_passes_by_what_another_holds_and_holds_no_more_than_it_takes(
        self, impatient: Any, other: Connection
    ) -> None:
        """POP_JOBS: without SKIP LOCKED it would wait; without its lazy loop it would lock all."""
        configure_topic("orders", shards=4)
        for n in range(8):
            add(str(n))
        params = {"kinds": kinds_of_topic("orders", 4)[:4], "limit": 3, "lease_id": "theirs",
                  "ttr": None, "default_ttr": 1000, "now": None}  # fmt: skip
        other.execute("BEGIN")
        assert len(other.execute(POP_JOBS, params).fetchall()) == 3
        assert len(pop_jobs("orders", 8)) == 5
        other.execute("ROLLBACK")

    @pytest.mark.parametrize("call", [finish_job, release_job, touch_job, bury_job])
    def test_a_consumer_that_waits_for_who_took_its_job_over_is_told(self, other, admin, call):
        """The statement compares the lease again with the updated row."""
        add()
        token = popped().lease_token
        other.execute("BEGIN")
        other.execute("""UPDATE delayed_queue SET "lockUuid" = 'theirs'""")
        with calling(partial(call, "orders", "a", token)) as settling:
            wait_until_blocked(admin, settling)
            other.execute("COMMIT")
            assert settling.answer() is Answer.STALE
        assert Message.objects.get().lease_id == "theirs"


class TestKicking:
    def test_of_many_kicks_one_puts_the_job_back(self) -> None:
        for n in range(20):
            add(str(n))
            bury_job("orders", str(n), popped().lease_token)
        kicks = [partial(kick_topic, "orders", 20)] * 4
        assert sum(together(kicks)) == 20
        assert Message.objects.count() == 20

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_a_kick_waits_for_a_post_of_its_id(self, other, admin, end):
        """REDRIVE: behind the lock it reads the job of the other kind."""
        add()
        bury_job("orders", "a", popped().lease_token)
        hold_job(other)
        insert(other, "orders|callback")
        with calling(partial(kick_job, "orders", "a")) as kick:
            wait_until_blocked(admin, kick)
            other.execute(end)
            assert kick.answer() == (0 if end == "COMMIT" else 1)
        assert Message.objects.count() == 1

    def test_a_kick_passes_by_a_letter_that_another_holds(self, impatient, other):
        add()
        bury_job("orders", "a", popped().lease_token)
        with other.transaction():
            other.execute("SELECT FROM delayed_queue_dead_letter FOR UPDATE")
            assert kick_topic("orders") == 0


def test_a_ttr_is_set_of_what_the_lease_still_holds(other: Connection, admin: Connection) -> None:
    add()
    job = popped()
    other.execute("BEGIN")
    other.execute('UPDATE delayed_queue SET "lockUuid" = NULL')
    ttrs = {job.message_id: 1000}
    with calling(lambda: Topic.objects.hold_for(job.lease_token, ttrs)) as call:
        wait_until_blocked(admin, call)
        other.execute("COMMIT")
        assert call.answer() == {}
