"""Jobs: one id over several kinds, under every race that the locks are there for (J3, J5, J6)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.db import (
    InternalError,
    OperationalError,
    ProgrammingError,
    connection,
    connections,
    transaction,
)

from delayed_queue import DelayedQueue, OfferOutcome, RetryPolicy, ScheduledMessage, sql
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import DeadLetter, IdempotencyKey, Message
from delayed_queue.queues.batches import outcome_of
from delayed_queue.topics import (
    AddedJob,
    Answer,
    IfExists,
    KeptAnswer,
    Refusal,
    add_jobs,
    bury_job,
    configure_topic,
    create_topic,
    delete_job,
    find_job,
    finish_job,
    forget_topics,
    job_from,
    kick_job,
    kick_topic,
    once,
    pop_jobs,
    prune_answers,
    release_job,
    touch_job,
)
from delayed_queue.topics.kinds import kinds_of_topic
from delayed_queue.topics.locks import lock_of
from tests.races.answers import polled
from tests.races.concurrency import Call, calling, together, wait_until_blocked
from tests.topics.support import URL, add, found, popped

Connection = psycopg.Connection[Any]


@pytest.fixture(autouse=True)
def new_process(transactional_db: None) -> Iterator[None]:
    forget_topics()
    yield
    forget_topics()


def hold_job(connection: Connection, job_id: str = "a") -> None:
    connection.execute("BEGIN")
    connection.execute(sql.LOCK_JOBS, {"topic": "orders", "keys": [job_id]})


def insert(connection: Connection, kind: str, key: str = "a") -> None:
    connection.execute(
        """
        INSERT INTO delayed_queue
            ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
        VALUES (%s, %s, '1', 0, 0, 0)
        """,
        [key, kind],
    )


@pytest.mark.parametrize("if_exists", IfExists)
def test_of_many_posts_of_an_id_with_and_without_url_one_creates(if_exists: IfExists) -> None:
    """J5: in two kinds, over which no index is unique."""
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
def test_a_post_waits_for_another_of_its_id(
    other: Connection, admin: Connection, url: str | None, end: str
) -> None:
    """And then sees what that one stored in the other kind: the lock has a statement of its own."""
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


def test_a_message_offered_meanwhile_under_the_id_is_not_overwritten(
    other: Connection, admin: Connection
) -> None:
    """ADD_JOBS: a queue's offer takes no lock; the unique index of the kind is what holds."""
    create_topic("orders")
    other.execute("BEGIN")
    insert(other, "orders|json")
    with calling(add) as post:
        wait_until_blocked(admin, post)
        other.execute("COMMIT")
        assert post.answer().outcome is None


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_an_update_waits_for_an_acknowledgement_and_loses_nothing(
    other: Connection, admin: Connection, end: str
) -> None:
    """PUT_JOBS: the job that moves is deleted, or was; either way the new one is stored."""
    add(body=1)
    token = popped().lease_token
    other.execute("BEGIN")
    other.execute(sql.ACKNOWLEDGE_LEASE, {"lease_id": token})
    with calling(partial(add, url=URL, body=2, if_exists="update")) as update:
        wait_until_blocked(admin, update)
        other.execute(end)
        assert update.answer().outcome == ("created" if end == "COMMIT" else "updated")
    assert bytes(Message.objects.get().payload) == b"2"


class TestDeletion:
    """J3: after the 204 the job is nowhere, whatever it was doing meanwhile."""

    def test_a_job_that_dies_meanwhile_is_deleted_as_a_dead_one(
        self, other: Connection, admin: Connection
    ) -> None:
        add()
        token = popped().lease_token
        params = {"ids": [Message.objects.get().id], "lease_id": token, "reason": "no",
                  "error": None, "now": None}  # fmt: skip
        other.execute("BEGIN")
        other.execute(sql.BURY, params)
        with calling(partial(delete_job, "orders", "a")) as deletion:
            wait_until_blocked(admin, deletion)
            other.execute("COMMIT")
            assert deletion.answer()
        assert find_job("orders", "a") is None

    def test_a_job_that_is_redriven_meanwhile_is_deleted_as_a_living_one(
        self, other: Connection, admin: Connection
    ) -> None:
        add()
        bury_job("orders", "a", popped().lease_token)
        redriving(other, DeadLetter.objects.get().id)
        with calling(partial(delete_job, "orders", "a")) as deletion:
            wait_until_blocked(admin, deletion)
            other.execute("COMMIT")
            assert deletion.answer()
        assert find_job("orders", "a") is None

    def test_a_job_that_is_retried_meanwhile_is_deleted(
        self, other: Connection, admin: Connection
    ) -> None:
        add()
        token = popped().lease_token
        params = {"ids": [Message.objects.get().id], "lease_id": token, "delay": 0, "refund": 0,
                  "error": None, "now": None}  # fmt: skip
        other.execute("BEGIN")
        other.execute(sql.RELEASE, params)
        with calling(partial(delete_job, "orders", "a")) as deletion:
            wait_until_blocked(admin, deletion)
            other.execute("COMMIT")
            assert deletion.answer()
        assert find_job("orders", "a") is None

    def test_a_job_that_moves_to_its_other_kind_meanwhile_is_deleted(
        self, other: Connection, admin: Connection
    ) -> None:
        add()
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
                # Deletions that were answered before the claim began.
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

    def test_many_pops_of_many_jobs_take_each_once(self) -> None:
        configure_topic("orders", shards=4)
        add_jobs([job_from({"jobId": str(n), "topic": "orders"}) for n in range(200)])

        def pop() -> list[str]:
            taken: list[str] = []
            while jobs := pop_jobs("orders", 5):
                taken += [each.job_id for each in jobs]
            return taken

        taken = [each for answer in together([pop] * 6) for each in answer]
        assert sorted(taken, key=int) == [str(n) for n in range(200)]

    def test_a_pop_passes_by_what_another_holds_and_holds_no_more_than_it_takes(
        self, impatient: Any, other: Connection
    ) -> None:
        """POP_JOBS: with SKIP LOCKED left out it would wait; without its lazy loop, lock all."""
        configure_topic("orders", shards=4)
        for n in range(8):
            add(str(n))
        params = {"kinds": kinds_of_topic("orders", 4)[:4], "limit": 3, "lease_id": "theirs",
                  "ttr": None, "default_ttr": 1000, "now": None}  # fmt: skip
        other.execute("BEGIN")
        assert len(other.execute(sql.POP_JOBS, params).fetchall()) == 3
        assert len(pop_jobs("orders", 8)) == 5
        other.execute("ROLLBACK")

    @pytest.mark.parametrize("call", [finish_job, release_job, touch_job, bury_job])
    def test_a_consumer_that_waits_for_who_took_its_job_over_is_told(
        self, other: Connection, admin: Connection, call: Callable[..., Answer]
    ) -> None:
        """FINISH_JOB and the others: the lease is compared again with the row as it became."""
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
    def test_a_kick_waits_for_a_post_of_its_id(
        self, other: Connection, admin: Connection, end: str
    ) -> None:
        """KICK_JOBS: the job that lives in the other kind is seen behind the lock."""
        add()
        bury_job("orders", "a", popped().lease_token)
        hold_job(other)
        insert(other, "orders|callback")
        with calling(partial(kick_job, "orders", "a")) as kick:
            wait_until_blocked(admin, kick)
            other.execute(end)
            assert kick.answer() == (0 if end == "COMMIT" else 1)
        assert Message.objects.count() == 1

    def test_a_kick_passes_by_a_letter_that_another_holds(
        self, impatient: Any, other: Connection
    ) -> None:
        add()
        bury_job("orders", "a", popped().lease_token)
        with other.transaction():
            other.execute("SELECT FROM delayed_queue_dead_letter FOR UPDATE")
            assert kick_topic("orders") == 0


def dead() -> int:
    """Make job a a dead one; return the id of its letter."""
    add()
    bury_job("orders", "a", popped().lease_token)
    return DeadLetter.objects.get().id


def redriving(connection: Connection, *letters: int, kind: str | None = None) -> None:
    """Redrive on the connection as queues and the admin do, but for the commit."""
    params = {"ids": list(letters), "kind": kind, "overwrite": False, "now": None, "most": 200}
    connection.execute("BEGIN")
    for each in (sql.LOCK_TOPICS_OF_LETTERS, sql.LOCK_JOBS_OF_LETTERS, sql.REDRIVE):
        connection.execute(each, params)


# From wherever letters are redriven.
REDRIVES: Final[dict[str, Callable[[int], Any]]] = {
    "queue": lambda letter: list(DelayedQueue("orders").redrive([letter]).values()),
    "queue, all": lambda letter: list(DelayedQueue("orders").redrive_all().elements()),
    "admin": lambda letter: [
        outcome_of(each.created) for each in DeadLetter.objects.redrive([letter])
    ],
}


class TestRedriving:
    """J5: letters come back under the locks of their jobs, whoever redrives them."""

    @pytest.mark.parametrize("way", REDRIVES)
    @pytest.mark.parametrize(
        ("end", "outcome"),
        [("COMMIT", OfferOutcome.IGNORED), ("ROLLBACK", OfferOutcome.CREATED)],
    )
    def test_j5_a_redrive_waits_for_an_update_of_its_job(
        self, other: Connection, admin: Connection, way: str, end: str, outcome: OfferOutcome
    ) -> None:
        """LOCK_JOBS_OF_LETTERS: and then sees the job live the other way, or not."""
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
    def test_j5_an_update_waits_for_a_redrive_of_its_job(
        self, other: Connection, admin: Connection, kind: str | None, end: str
    ) -> None:
        redriving(other, dead(), kind=kind)
        with calling(partial(add, url=URL, if_exists="update")) as update:
            wait_until_blocked(admin, update)
            other.execute(end)
            outcome = OfferOutcome.UPDATED if end == "COMMIT" else OfferOutcome.CREATED
            assert update.answer().outcome is outcome
        assert Message.objects.get().kind == "orders|callback"

    def test_j5_a_job_that_dies_and_is_redriven_during_one_update_is_not_two(
        self, other: Connection, admin: Connection
    ) -> None:
        """PUT_JOBS has looked already, and waits for the row of another job."""
        add("x")
        add("a")
        for _ in range(2):
            popped()
        bury = partial(Message.objects.bury, reason="no")
        lease_id = Message.objects.get(key="a").lease_id
        ids = list(Message.objects.filter(key="a").values_list("id", flat=True))
        other.execute("BEGIN")
        other.execute("""SELECT FROM delayed_queue WHERE "pKey" = 'x' FOR UPDATE""")
        jobs = [job_from({"jobId": name, "topic": "orders", "url": URL}) for name in ("x", "a")]
        update = partial(add_jobs, jobs, if_exists=IfExists.UPDATE)
        with calling(update) as updating:
            wait_until_blocked(admin, updating)
            assert bury(lease_id, ids)
            with calling(partial(DelayedQueue("orders").redrive_all)) as redrive:
                wait_until_blocked(admin, redrive)
                other.execute("COMMIT")
                # It comes before the update asks again for the job that was gone.
                assert redrive.answer() == {OfferOutcome.CREATED: 1}
                assert {each.outcome for each in updating.answer()} == {OfferOutcome.UPDATED}
        assert sorted(Message.objects.values_list("key", "kind")) == [
            ("a", "orders|callback"), ("x", "orders|callback")
        ]  # fmt: skip

    def test_j5_the_first_job_of_a_topic_waits_for_a_redrive_of_the_queue_of_its_name(
        self, other: Connection, admin: Connection
    ) -> None:
        """CREATE_TOPIC: the redrive found no topic, and holds no job."""
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

    def test_the_topic_is_locked_before_its_jobs(
        self, other: Connection, admin: Connection
    ) -> None:
        """LOCK_JOBS: as everybody does, or a redrive could wait for a post that waits for it."""
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
            # A queue that is no topic, one that cannot be, a topic, and more than locks are for.
            (DelayedQueue("other"), 3, {("ShareLock", True): 1}),
            (DelayedQueue("orders", codec="text"), 3, {}),
            (DelayedQueue("orders"), 3, {("ShareLock", True): 1, ("ExclusiveLock", True): 3}),
            (DelayedQueue("orders"), 201, {("ExclusiveLock", True): 1}),
        ],
    )
    def test_a_redrive_holds_no_more_locks_than_it_needs(
        self, queue: DelayedQueue, letters: int, expected: dict[tuple[str, bool], int]
    ) -> None:
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
    """Count the advisory locks that a server process holds or (False) waits for, by mode."""
    found = connection.execute(
        """SELECT mode, granted FROM pg_locks
        WHERE locktype = 'advisory' AND pid = %s""", [pid]
    )  # fmt: skip
    return Counter((mode, granted) for mode, granted in found.fetchall())


class TestConsumption:
    """A transaction that consumed a job and failed puts it back as a row that no snapshot knew."""

    @pytest.fixture
    def consumer(self) -> Iterator[tuple[Call[int], threading.Event]]:
        """Who has consumed job a of the topic by its queue, and fails when told to."""
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

    def test_j5_an_update_that_moves_the_job_finds_it_again(
        self, consumer: tuple[Call[int], threading.Event], admin: Connection
    ) -> None:
        consumption, fails = consumer
        with calling(partial(add, url=URL, if_exists="update")) as update:
            wait_until_blocked(admin, update)
            fails.set()
            consumption.answer()
            assert update.answer().outcome is OfferOutcome.UPDATED
        assert Message.objects.get().kind == "orders|callback"

    def test_j3_a_deletion_finds_it_again(
        self, consumer: tuple[Call[int], threading.Event], admin: Connection
    ) -> None:
        consumption, fails = consumer
        with calling(partial(delete_job, "orders", "a")) as deletion:
            wait_until_blocked(admin, deletion)
            fails.set()
            consumption.answer()
            assert deletion.answer()
        assert find_job("orders", "a") is None

    def test_j5_of_jobs_that_are_consumed_fail_die_move_and_are_redriven_each_is_one(self) -> None:
        """All at once, many times: whoever comes in between is met by asking again."""
        policy = RetryPolicy.ladder(" ".join(["1ms"] * 4))
        queue = DelayedQueue("orders", retry_policy=policy)
        is_over = threading.Event()

        def fail() -> int:
            while not is_over.is_set():
                with suppress(Poison), queue.consume() as envelope:
                    if envelope is not None:
                        raise Poison(envelope)
            return 0

        def redrive() -> int:
            while not is_over.is_set():
                queue.redrive_all()
            return 0

        def update(first: int) -> int:
            try:
                for n in range(first, first + 150):
                    url = URL if n % 2 else None
                    jobs = [
                        job_from({"jobId": name, "topic": "orders", "url": url, "body": n})
                        for name in ("a", "b", "c")
                    ]
                    add_jobs(jobs, if_exists=IfExists.UPDATE)
            finally:
                is_over.set()
            return 0

        calls: list[Callable[[], int]] = [fail, fail, fail, redrive]
        calls += [partial(update, 0), partial(update, 1)]
        together(calls)
        assert max(Counter(Message.objects.values_list("key", flat=True)).values()) == 1


class Poison(Exception):
    """What a handler raises."""


class TestShards:
    def test_a_change_waits_for_posts_under_way_and_sees_what_they_stored(
        self, other: Connection, admin: Connection
    ) -> None:
        configure_topic("orders", shards=2)
        hold_job(other, "b")
        insert(other, "orders#1|json", "b")
        with calling(partial(configure_topic, "orders", shards=1)) as change:
            wait_until_blocked(admin, change)
            other.execute("COMMIT")
            with pytest.raises(InvalidConfiguration):
                change.answer()

    def test_a_post_waits_for_a_change_and_goes_by_it(
        self, other: Connection, admin: Connection
    ) -> None:
        configure_topic("orders", shards=2)
        other.execute("BEGIN")
        other.execute(sql.LOCK_TOPIC, {"topic": "orders"})
        other.execute("UPDATE delayed_queue_topic SET shards = 1")
        posts = [job_from({"jobId": str(n), "topic": "orders"}) for n in range(9)]
        with calling(partial(add_jobs, posts)) as post:
            wait_until_blocked(admin, post)
            other.execute("COMMIT")
            assert {each.outcome for each in post.answer()} == {"created"}
        assert set(Message.objects.values_list("kind", flat=True)) == {"orders|json"}

    def test_posts_go_on_while_shards_come_and_go(self) -> None:
        def change() -> int:
            for n in range(30):
                try:
                    configure_topic("orders", shards=n % 5 + 1)
                except InvalidConfiguration:
                    continue
            return 0

        def post(name: str) -> int:
            return [add(f"{name}{n}").outcome for n in range(40)].count(OfferOutcome.CREATED)

        calls: list[Callable[[], int]] = [change, *(partial(post, name) for name in "abc")]
        assert sum(together(calls)) == 120
        forget_topics()
        assert all(found(f"{name}{n}") for name in "abc" for n in range(40))
        assert len(pop_jobs("orders", 200)) == 120

    def test_of_many_first_jobs_all_are_stored_in_one_topic(self) -> None:
        posts = [partial(add, str(n)) for n in range(8)]
        assert {each.outcome for each in together(posts)} == {"created"}


SCOPE: Final = "token POST jobs"


class TestIdempotency:
    def test_of_many_equal_requests_one_is_carried_out(self) -> None:
        calls: list[int] = []

        def answer() -> KeptAnswer:
            calls.append(1)
            return KeptAnswer(202, str(add("a").outcome))

        answers = together([partial(once, SCOPE, "key", b"{}", answer)] * 8)
        assert len(calls) == 1
        kinds = Counter(each.value if isinstance(each, Refusal) else each.body for each in answers)
        assert set(kinds) <= {"created", Refusal.IN_PROGRESS.value}
        assert kinds["created"] >= 1
        assert Message.objects.count() == 1

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_a_request_under_way_refuses_its_like_and_then_answers_or_not(
        self, other: Connection, end: str
    ) -> None:
        """TRY_KEY, READ_ANSWER, SAVE_ANSWER: kept with the commit or not at all."""
        other.execute("BEGIN")
        held = other.execute(sql.TRY_KEY, {"lock": lock_of("idempotency", SCOPE, "key")})
        assert held.fetchone() == (True,)
        kept = {"scope": SCOPE, "key": "key", "request_hash": b"x", "status": 202,
                "answer": "theirs", "now": None}  # fmt: skip
        other.execute(sql.SAVE_ANSWER, kept)

        def mine() -> object:
            return once(SCOPE, "key", b"{}", lambda: KeptAnswer(202, "mine"))

        assert mine() is Refusal.IN_PROGRESS
        other.execute(end)
        assert mine() == (Refusal.OTHER_REQUEST if end == "COMMIT" else KeptAnswer(202, "mine"))

    def test_pruning_passes_by_what_another_holds(self, impatient: Any, other: Connection) -> None:
        for key in ("a", "b"):
            once(SCOPE, key, b"{}", lambda: KeptAnswer(202, ""))
        IdempotencyKey.objects.update(created_at=0)
        with other.transaction():
            other.execute("SELECT FROM delayed_queue_idempotency_key WHERE key = 'a' FOR UPDATE")
            assert prune_answers() == 1
