"""Returning jobs: redriven, or restored by a failed transaction (J3, J5)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest
from django.db import connections, transaction

from delayed_queue import DelayedQueue, OfferOutcome, ScheduledMessage
from delayed_queue.http.jobs.adding import add_jobs, delete_job, find_job
from delayed_queue.http.jobs.catalogue import create_topic
from delayed_queue.http.jobs.consuming import bury_job
from delayed_queue.http.jobs.dead import kick_topic
from delayed_queue.http.jobs.jobs import IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.offering import outcome_of
from tests.http.jobs.support import URL, add, pop_jobs, popped
from tests.http.races.jobs import Connection, hold_job, insert, redriving
from tests.support.answers import polled
from tests.support.concurrency import Call, calling, together, wait_until_blocked

pytestmark = pytest.mark.usefixtures("new_process")


def dead() -> int:
    """Make job a a dead letter; return its id."""
    add()
    bury_job("orders", "a", popped().lease_token)
    return DeadLetter.objects.get().id


# Every call that redrives letters.
REDRIVES: Final[dict[str, Callable[[int], Any]]] = {
    "queue": lambda letter: list(DelayedQueue("orders").redrive([letter]).values()),
    "queue, all": lambda letter: list(DelayedQueue("orders").redrive_all().elements()),
    "admin": lambda letter: [
        outcome_of(each.created) for each in DeadLetter.objects.redrive([letter])
    ],
}


class TestRedriving:
    """J5: every redrive brings dead letters back under the locks of their jobs."""

    @pytest.mark.parametrize("way", REDRIVES)
    @pytest.mark.parametrize(
        ("end", "outcome"), [("COMMIT", OfferOutcome.IGNORED), ("ROLLBACK", OfferOutcome.CREATED)]
    )
    def test_j5_a_redrive_waits_for_an_update_of_its_job(self, other, admin, way, end, outcome):
        """LOCK_JOBS_OF_LETTERS: it then reads the job's other kind."""
        letter = dead()
        hold_job(other)
        insert(other, "orders|callback")
        with calling(partial(REDRIVES[way], letter)) as redrive:
            wait_until_blocked(admin, redrive)
            other.execute(end)
            assert redrive.answer() == [outcome]
        assert Message.objects.count() == 1

    @pytest.mark.parametrize("kind", ["orders|json", None])
    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_j5_an_update_waits_for_a_redrive_of_its_job(self, other, admin, kind, end):
        redriving(other, dead(), kind=kind)
        with calling(partial(add, url=URL, if_exists="update")) as update:
            wait_until_blocked(admin, update)
            other.execute(end)
            outcome = OfferOutcome.UPDATED if end == "COMMIT" else OfferOutcome.CREATED
            assert update.answer().outcome is outcome
        assert Message.objects.get().kind == "orders|callback"

    def test_j5_the_first_job_of_a_topic_waits_for_a_redrive_of_the_queue_of_its_name(
        self, other: Connection, admin: Connection
    ) -> None:
        """CREATE_TOPIC: the redrive found no topic, and locks no job."""
        queue = DelayedQueue("orders")
        queue.offer_or_update("a", 1)
        polled(queue).reject("no")
        redriving(other, DeadLetter.objects.get().id)
        with calling(partial(add, url=URL, if_exists="update")) as update:
            wait_until_blocked(admin, update)
            other.execute("COMMIT")
            assert update.answer().outcome is OfferOutcome.UPDATED
        assert Message.objects.get().kind == "orders|callback"

    def test_redrives_and_bulks_of_the_same_jobs_in_any_order_do_not_deadlock(self) -> None:
        names = [str(n) for n in range(60)]
        for topic in ("orders", "mails"):
            add_jobs([job_from({"jobId": name, "topic": topic}) for name in names])
            for each in pop_jobs(topic, 60):
                bury_job(topic, each.job_id, each.lease_token)
        letters = list(DeadLetter.objects.values_list("id", flat=True))
        bulks = [
            [job_from({"jobId": name, "topic": topic, "url": URL}) for name in some]
            for topic in ("orders", "mails")
            for some in (names, names[::-1])
        ]
        calls: list[Callable[[], Any]] = [
            *(partial(add_jobs, each, if_exists=IfExists.UPDATE) for each in bulks),
            partial(DeadLetter.objects.redrive, letters[::-1]),
            partial(DeadLetter.objects.redrive, letters),
            partial(kick_topic, "mails", 60),
        ]
        together(calls)
        lives = Counter(Message.objects.values_list("kind", "key"))
        assert len(lives) == Message.objects.count() == 120

    def test_a_redrive_of_another_job_is_not_waited_for(self, other: Connection) -> None:
        redriving(other, dead())
        with calling(partial(add, "b", url=URL)) as post:
            assert post.answer().outcome is OfferOutcome.CREATED

    def test_the_topic_is_locked_before_its_jobs(self, other, admin):
        """LOCK_JOBS: in the common order, or a redrive could wait for a post that waits for it."""
        create_topic("orders")
        hold_job(other)
        with calling(add) as post:
            wait_until_blocked(admin, post)
            expected = {("ShareLock", True): 1, ("ExclusiveLock", False): 1}
            assert advisory_locks(admin, post.pid) == expected
            other.execute("COMMIT")
            post.answer()

    @pytest.mark.parametrize(
        ("queue", "letters", "expected"),
        [
            # A queue that is no topic, one that cannot be a topic, a topic, and more letters than
            # locks.
            (DelayedQueue("other"), 3, {("ShareLock", True): 1}),
            (DelayedQueue("orders", codec="text"), 3, {}),
            (DelayedQueue("orders"), 3, {("ShareLock", True): 1, ("ExclusiveLock", True): 3}),
            (DelayedQueue("orders"), 201, {("ExclusiveLock", True): 1}),
        ],
    )
    def test_a_redrive_holds_no_more_locks_than_it_needs(self, queue, letters, expected):
        create_topic("orders")
        ids = dead_ones(queue, letters)
        with transaction.atomic():
            assert set(queue.redrive(ids).values()) == {OfferOutcome.CREATED}
            assert own_locks() == expected

    def test_all_of_a_topic_are_redriven_without_holding_it_alone(self) -> None:
        create_topic("orders")
        dead_ones(DelayedQueue("orders"), 201)
        with transaction.atomic():
            assert DelayedQueue("orders").redrive_all() == {OfferOutcome.CREATED: 201}
            assert own_locks() == {("ShareLock", True): 1, ("ExclusiveLock", True): 201}


def dead_ones(queue: DelayedQueue, count: int) -> list[int]:
    queue.offer_batch([ScheduledMessage(str(n), "x") for n in range(count)])
    for each in queue.try_poll_many(count):
        assert each.reject("no")
    return list(DeadLetter.objects.values_list("id", flat=True))


def own_locks() -> Counter[tuple[str, bool]]:
    connection = connections["default"].connection
    return advisory_locks(connection, connection.info.backend_pid)


def advisory_locks(connection: Connection, pid: int) -> Counter[tuple[str, bool]]:
    """Count a server process's advisory locks by mode: held, or (False) awaited."""
    found = connection.execute(
        """SELECT mode, granted FROM pg_locks
        WHERE locktype = 'advisory' AND pid = %s""", [pid]
    )  # fmt: skip
    return Counter((mode, granted) for mode, granted in found.fetchall())


class TestConsumption:
    """A failed consuming transaction restores a job as a row that no snapshot has."""

    @pytest.fixture
    def consumer(self) -> Iterator[tuple[Call[int], threading.Event]]:
        """A consumer that has consumed job a of the topic by its queue, and fails on request."""
        add()
        holds, fails = threading.Event(), threading.Event()

        def consume() -> int:
            with suppress(Poison), DelayedQueue("orders").consume() as envelope:
                holds.set()
                assert fails.wait(20)
                raise Poison(envelope)
            return 0

        with calling(consume) as consumption:
            assert holds.wait(20)
            yield consumption, fails
            fails.set()

    def test_j5_an_update_that_moves_the_job_finds_it_again(self, consumer, admin):
        consumption, fails = consumer
        with calling(partial(add, url=URL, if_exists="update")) as update:
            wait_until_blocked(admin, update)
            fails.set()
            consumption.answer()
            assert update.answer().outcome is OfferOutcome.UPDATED
        assert Message.objects.get().kind == "orders|callback"

    def test_j3_a_deletion_finds_it_again(self, consumer, admin):
        consumption, fails = consumer
        with calling(partial(delete_job, "orders", "a")) as deletion:
            wait_until_blocked(admin, deletion)
            fails.set()
            consumption.answer()
            assert deletion.answer()
        assert find_job("orders", "a") is None


class Poison(Exception):
    """The exception of a handler."""
