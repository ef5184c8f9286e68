"""Changing shards under jobs, and repeated requests (J3, J5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from io import StringIO
from typing import Any, Final

import pytest
from django.core.management import CommandError, call_command

from delayed_queue import OfferOutcome
from delayed_queue.admin.limits import LimitAll
from delayed_queue.admin.operations import Call, Report
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.jobs.adding import add_jobs, write_jobs
from delayed_queue.http.jobs.catalogue import (
    configure_topic,
    ensure_topic,
    forget_topics,
    pause_topic,
    read_topic,
)
from delayed_queue.http.jobs.idempotency import KeptAnswer, Refusal, once, prune_answers
from delayed_queue.http.jobs.jobs import IfExists
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.http.models import IdempotencyKey, Topic
from delayed_queue.http.store.callers import SAVE_ANSWER, TRY_KEY
from delayed_queue.http.store.topics import LOCK_TOPIC, locking_jobs
from delayed_queue.models import Limit, Message
from tests.http.jobs.support import add, found, pop_jobs
from tests.http.races.jobs import Connection, hold_job, insert
from tests.support.concurrency import calling, together, wait_until_blocked

pytestmark = pytest.mark.usefixtures("new_process")


HOLD_TOPIC: Final = "SELECT FROM delayed_queue_topic WHERE name = %(topic)s FOR NO KEY UPDATE"


class TestShards:
    def test_a_change_waits_for_posts_under_way_and_sees_what_they_stored(self, other, admin):
        configure_topic("orders", shards=2)
        hold_job(other, "b")
        insert(other, "orders#1|json", "b")
        with calling(partial(configure_topic, "orders", shards=1)) as change:
            wait_until_blocked(admin, change)
            other.execute("COMMIT")
            with pytest.raises(InvalidConfiguration):
                change.answer()

    def test_a_post_waits_for_a_change_and_goes_by_it(self, other, admin):
        configure_topic("orders", shards=2)
        other.execute("BEGIN")
        other.execute(LOCK_TOPIC, {"topic": "orders"})
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


HOSTS: Final = [f"host-{n}.example" for n in range(6)]


class TestHosts:
    def test_j5_a_job_is_one_while_its_url_moves_between_new_hosts(self) -> None:
        posts = [
            partial(add, str(n), url=f"https://{host}/", if_exists="update")
            for host in HOSTS
            for n in range(3)
        ]
        outcomes = Counter(each.outcome for each in together(posts))
        assert outcomes[OfferOutcome.CREATED] == 3
        assert Message.objects.count() == 3
        assert len(read_topic("orders").hosts.split()) == len(HOSTS)
        forget_topics()
        assert [add(str(n), url="https://late.example/").outcome for n in range(3)] == [None] * 3

    def test_j5_who_knows_fewer_hosts_adds_no_second_job(self) -> None:
        add("x", url="https://a.example/")
        stale = ensure_topic("orders")
        add("a", url="https://b.example/")
        job = job_from({"jobId": "a", "topic": "orders", "url": "https://a.example/"})
        assert write_jobs(stale, [job], IfExists.FAIL, "default") is None

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_a_new_host_waits_for_a_pause_and_goes_by_it(self, other, admin, end):
        """A pause locks the topic, so that it covers each shard."""
        add("x", url="https://a.example/")
        other.execute("BEGIN")
        other.execute(HOLD_TOPIC, {"topic": "orders"})
        other.execute(
            'INSERT INTO delayed_queue_limit ("pKind", "pausedAt", reason) '
            "VALUES ('orders|json', 0, '')"
        )
        with calling(partial(add, "y", url="https://b.example/")) as post:
            wait_until_blocked(admin, post)
            # A post for hosts that have their shards does not wait.
            assert add("z", url="https://a.example/").outcome == "created"
            other.execute(end)
            assert post.answer().outcome == "created"
        is_paused = Limit.objects.filter(kind="orders#1|callback").exists()
        assert is_paused is (end == "COMMIT")

    def test_a_pause_waits_for_a_new_host_and_pauses_it_too(self, other, admin):
        add("x", url="https://a.example/")
        other.execute("BEGIN")
        other.execute(HOLD_TOPIC, {"topic": "orders"})
        other.execute("UPDATE delayed_queue_topic SET hosts = hosts || ' b.example:443'")
        with calling(partial(pause_topic, "orders")) as pause:
            wait_until_blocked(admin, pause)
            other.execute("COMMIT")
            assert pause.answer() is True
        assert Limit.objects.filter(kind="orders#1|callback").exists()


KIND: Final = "orders|json"


def set_limits() -> int:
    """As an operator does by the command; return the number of changes."""
    try:
        call_command("queuegroups", "set", "orders", "--concurrency", "1", stdout=StringIO())
    except CommandError:
        return 0
    return 1


def limit_in_admin(user: Any) -> Report:
    """As an operator does by the form, after its validation."""
    call = Call(Limit.objects.filter(kind=KIND), [KIND, ""], user, {"seen": "", "concurrency": 1})
    return LimitAll().run(call)


def more_shards() -> int:
    try:
        configure_topic("orders", shards=2)
    except InvalidConfiguration:
        return 0
    return 1


class TestLimits:
    """A topic with limits has one shard: two changes of it meet at its lock."""

    @pytest.mark.parametrize("way", ["command", "admin"])
    def test_an_operator_waits_for_more_shards_and_is_refused(self, other, admin, admin_user, way):
        configure_topic("orders", shards=1)
        other.execute("BEGIN")
        other.execute(LOCK_TOPIC, {"topic": "orders"})
        other.execute("UPDATE delayed_queue_topic SET shards = 2")
        change: Callable[[], Any] = set_limits
        if way == "admin":
            change = partial(limit_in_admin, admin_user)
        with calling(change) as call:
            wait_until_blocked(admin, call)
            other.execute("COMMIT")
            found = call.answer()
        if way == "command":
            assert found == 0
        else:
            assert found.left == {"no longer can have limits": ["orders"]}
        assert not Limit.objects.exists()

    @pytest.mark.parametrize("exists", [True, False])
    def test_who_gives_it_shards_waits_for_an_operator_and_is_refused(self, other, admin, exists):
        if exists:
            configure_topic("orders", shards=1)
        other.execute("BEGIN")
        for statement, params in (locking_jobs("orders", []), (HOLD_TOPIC, {"topic": "orders"})):
            other.execute(statement, params)
        other.execute(
            'INSERT INTO delayed_queue_limit ("pKind", "group", concurrency) VALUES (%s, %s, 1)',
            [KIND, ""],
        )
        with calling(more_shards) as change:
            wait_until_blocked(admin, change)
            other.execute("COMMIT")
            assert change.answer() == 0
        assert read_topic("orders").shards == 1

    @pytest.mark.parametrize("exists", [True, False])
    def test_of_both_at_once_one_wins(self, exists: bool) -> None:
        add("a", group="g")
        for _ in range(10):
            Limit.objects.all().delete()
            Topic.objects.all().delete()
            forget_topics()
            if exists:
                configure_topic("orders", shards=1)
            assert together([set_limits, more_shards]) in ([1, 0], [0, 1])


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
    def test_a_request_under_way_refuses_its_like_and_then_answers_or_not(self, other, end):
        """TRY_KEY, READ_ANSWER, SAVE_ANSWER: stored with the commit or not at all."""
        other.execute("BEGIN")
        held = other.execute(TRY_KEY, {"scope": SCOPE, "key": "key"})
        assert held.fetchone() == (True,)
        kept = {"scope": SCOPE, "key": "key", "request_hash": b"x", "status": 202,
                "answer": "theirs", "now": None}  # fmt: skip
        other.execute(SAVE_ANSWER, kept)

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
