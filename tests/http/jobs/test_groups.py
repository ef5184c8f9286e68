"""Topics with limits: jobs name a group, and wait for its slots (G10)."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client

from delayed_queue import DelayedQueue, Groups
from delayed_queue.db.wakeups import Listener
from delayed_queue.exceptions import InvalidConfiguration, InvalidJob
from delayed_queue.http.jobs.catalogue import (
    configure_topic,
    pause_topic,
)
from delayed_queue.http.jobs.consuming import (
    LimitedTopic,
    Pop,
    bury_job,
    finish_job,
    limited_topic,
    release_job,
)
from delayed_queue.http.jobs.dead import kick_job
from delayed_queue.http.jobs.jobs import Answer
from delayed_queue.http.jobs.requests import job_from
from delayed_queue.models import Limit, Message
from delayed_queue.queue.store.groups import TAKE_TURN
from tests.http.jobs.support import add, found, pop_jobs, popped
from tests.support.concurrency import together
from tests.support.processes import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def groups(count: int = 100, **options: Any) -> list[str | None]:
    return [job.group for job in pop_jobs("orders", count, **options)]


class TestJobs:
    @pytest.mark.parametrize("group", ["", "x" * 101, "a\0b", "a\nb", "\ud800", 7, ["a"]])
    def test_a_group_that_is_none_is_refused(self, group: Any) -> None:
        with pytest.raises(InvalidJob) as caught:
            job_from({"jobId": "a", "topic": "orders", "group": group})
        assert [path for path, _ in caught.value.errors] == ["group"]

    @pytest.mark.parametrize("group", [None, "a", "x" * 100, "Zürich 7/8"])
    def test_it_stays_with_the_job_until_its_end(self, group: str | None) -> None:
        add(group=group)
        assert found().group == group
        job = popped()
        assert job.group == group
        bury_job("orders", "a", job.lease_token)
        assert found().group == group
        assert kick_job("orders", "a")
        assert popped().group == group

    def test_another_group_is_a_change(self) -> None:
        at = "2030-01-31T12:00:00Z"
        add(group="a", runAt=at)
        for group, outcome in (("a", "ignored"), ("b", "updated"), (None, "updated")):
            assert str(add(group=group, runAt=at, if_exists="update").outcome) == outcome
            assert found().group == group


class TestPops:
    def test_no_more_of_a_group_are_held_than_its_limit(self) -> None:
        configure_topic("orders", groups=Groups(concurrency=2))
        for n in range(6):
            add(f"a{n}", group="a")
        add("b", group="b")
        add("none")
        assert sorted(map(str, groups())) == ["None", "a", "a", "b"]
        assert groups() == []
        held = [each for each in Message.objects.filter(group="a") if each.lease_id]
        assert finish_job("orders", held[0].key, str(held[0].lease_id))
        assert groups() == ["a"]
        assert groups() == []

    def test_in_order_one_after_the_other(self) -> None:
        configure_topic("orders", groups=Groups(order="fifo"))
        for name in ("first", "second"):
            add(name, group="a")
        first = popped()
        assert first.job_id == "first"
        assert release_job("orders", "first", first.lease_token, delay=timedelta(minutes=1))
        assert groups() == []

    def test_a_rate_says_when_to_ask_again(self) -> None:
        configure_topic("orders", groups=Groups(rate="2/m"))
        for n in range(3):
            add(f"a{n}", group="a")
        assert groups() == ["a"]
        assert groups() == []
        assert 0 < Pop("orders").next_in() <= 3

    def test_a_permit_is_not_waited_for_when_the_topic_is_paused(self) -> None:
        """Its time passes meanwhile: a pop that waited for it would poll without end."""
        configure_topic("orders", groups=Groups(rate="2/s"))
        for n in range(9):
            add(f"a{n}", group="a")
        assert groups()
        pause_topic("orders")
        wait_until(lambda: not limited_topic("orders", "default").is_limited())
        assert groups() == []
        assert Pop("orders").next_in() == 3.0

    @pytest.mark.parametrize(("own", "asked", "seconds"), [
        (7, None, 7), (None, 11, 11), (7, 11, 11), (None, None, 300),
    ])  # fmt: skip
    def test_they_are_leased_for_as_long_as_elsewhere(self, own, asked, seconds):
        configure_topic("orders", groups=Groups(concurrency=1))
        add(group="a", ttr=own)
        ttr = None if asked is None else timedelta(seconds=asked)
        (job,) = pop_jobs("orders", ttr=ttr)
        (stored,) = Message.objects.all()
        assert job.leased_until == stored.scheduled_at
        leased_for = job.leased_until - found().created_at
        assert timedelta(seconds=seconds) <= leased_for < timedelta(seconds=seconds + 3)

    def test_limits_that_go_and_come_are_heard_of_within_a_second(self) -> None:
        limits = DelayedQueue("orders").groups
        add("a", group="a")
        limits.set(Groups(concurrency=1))
        assert groups() == ["a"]
        limits.clear()
        for n in range(3):
            add(f"a{n}", group="a")
        assert groups() == ["a"] * 3


class TestLimitsOfTopics:
    def test_they_are_of_callbacks_too_for_each_host(self) -> None:
        add("a", url="https://a.example/x", group="g")
        configure_topic("orders", groups=Groups(concurrency=3))
        add("b", url="https://b.example/x", group="g")
        found = Limit.objects.values_list("kind", "concurrency").order_by("kind")
        assert list(found) == [
            ("orders#1|callback", 3), ("orders|callback", 3), ("orders|json", 3),
        ]  # fmt: skip
        configure_topic("orders", groups=None)
        assert not Limit.objects.exists()

    def test_one_shard_has_all_of_a_group(self) -> None:
        configure_topic("orders", groups=Groups(concurrency=1))
        with pytest.raises(InvalidConfiguration, match="one shard"):
            configure_topic("orders", shards=2)
        assert configure_topic("orders", shards=2, groups=None).shards == 2
        with pytest.raises(InvalidConfiguration, match="one shard"):
            configure_topic("orders", groups=Groups(concurrency=1))
        assert not Limit.objects.exists()

    def test_nor_do_operators_limit_one_of_several(self, admin_client: Client) -> None:
        configure_topic("orders", shards=2)
        add("a", group="g")
        for arguments in (["set", "--concurrency", "1"], ["pause", "g", "--force"]):
            with pytest.raises(CommandError, match="several shards"):
                call_command("queuegroups", arguments[0], "orders", *arguments[1:])
        url = "/admin/delayed_queue/queueoverview/history/?kind=orders%7Cjson"
        limits = {"concurrency": "1", "order": "any", "on_dead": "pass", "fair": "on", "seen": ""}
        response = admin_client.post(url, {**limits, "limit_all": "", "confirmed": "yes"})
        assert "several shards" in response.content.decode()
        assert not Limit.objects.exists()

    def test_a_pause_goes_with_more_shards(self) -> None:
        DelayedQueue("orders").pause("stock")
        assert configure_topic("orders", shards=2).shards == 2
        reasons = Limit.objects.values_list("kind", "reason").order_by("kind")
        assert list(reasons) == [("orders#1|json", "stock"), ("orders|json", "stock")]

    @pytest.mark.parametrize("wrong", [3, "fifo", {"concurrency": 1}])
    def test_what_are_no_limits_is_refused(self, wrong: Any) -> None:
        with pytest.raises(InvalidConfiguration, match="groups must be"):
            configure_topic("orders", groups=wrong)


class TestRaces:
    def test_pops_of_several_processes_never_hold_more_than_the_limit(self) -> None:
        """Each thread stands for a process, since each caches limits by itself."""
        configure_topic("orders", groups=Groups(concurrency=2))
        for n in range(120):
            add(f"{n}", group=f"g{n % 3}")
        held: Counter[str | None] = Counter()
        most: Counter[str | None] = Counter()
        lock = threading.Lock()

        def consume() -> int:
            done = 0
            mine = LimitedTopic("orders", "default")
            while Message.objects.exists():
                token, rows = mine.pop(3, None)
                with lock:
                    held.update(row.group for row in rows)
                    for row in rows:
                        most[row.group] = max(most[row.group], held[row.group])
                for row in rows:
                    with lock:
                        held[row.group] -= 1
                    assert finish_job("orders", row.key, token) == Answer.DONE
                done += len(rows)
            return done

        assert sum(together([consume] * 4)) == 120
        assert max(most.values()) <= 2

    def test_a_pop_gives_up_while_another_claim_does_not_end(self, other: Any) -> None:
        configure_topic("orders", groups=Groups(concurrency=2))
        add(group="a")
        other.execute("BEGIN")
        other.execute(TAKE_TURN, {"kind": "orders|json", "idle": None})
        assert groups() == []
        other.execute("COMMIT")
        assert groups() == ["a"]

    def test_a_lost_connection_is_repeated_and_takes_no_second_slot(self, admin: Any) -> None:
        configure_topic("orders", groups=Groups(concurrency=1))
        add(group="a")
        connection.ensure_connection()
        admin.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])
        assert groups() == ["a"]
        assert groups() == []


def test_what_was_finished_is_answered_so_though_nobody_can_be_woken(other: Any) -> None:
    add(group="a")
    job = popped()
    limited_topic.cache_clear()
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    other.execute("BEGIN")
    other.execute("LOCK TABLE delayed_queue_limit IN ACCESS EXCLUSIVE MODE")
    try:
        assert finish_job("orders", "a", job.lease_token) == Answer.DONE
    finally:
        other.execute("ROLLBACK")
        connection.close()


@pytest.mark.parametrize("end", ["finish", "release", "bury"])
def test_the_end_of_a_job_wakes_those_who_wait_for_one_of_its_group(end: str) -> None:
    configure_topic("orders", groups=Groups(concurrency=1))
    add(group="a")
    job = popped()
    with Listener(["orders|json"], "default") as listener:
        {
            "finish": lambda: finish_job("orders", "a", job.lease_token),
            "release": lambda: release_job(
                "orders", "a", job.lease_token, delay=timedelta(hours=1)
            ),
            "bury": lambda: bury_job("orders", "a", job.lease_token),
        }[end]()
        assert listener.wait(20)
