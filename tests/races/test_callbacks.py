"""Hosts, slots, endpoints and attempts, under many workers at once (J12)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue, sql
from delayed_queue.managers import NO_FLOOR, Beginning, BiteRow, without_edge
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import CallbackAttempt, Endpoint, Host, Message, Slot, Topic
from delayed_queue.topics import IfExists, add_jobs, delete_job, forget_topics, job_from
from tests.factories import MessageFactory
from tests.races.answers import present
from tests.races.concurrency import calling, together, wait_until_blocked

NOW: Final = 1_800_000_000_000
HOST: Final = "example.com:443"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def half_open() -> None:
    Host.objects.open(HOST, "timeout", pause=1000, now=NOW)


def probing(by: str, now: int = NOW + 1000) -> bool:
    return Host.objects.probe(HOST, by, patience=5000, now=now)


def ending(by: str, outcome: Any, now: int = NOW + 2000) -> bool:
    return Host.objects.end_probe(HOST, by, outcome, pause=1000, longest=100_000, now=now)


class TestHosts:
    def test_j12_of_twenty_workers_one_probes(self, half_open: None) -> None:
        answers = together([partial(probing, str(n)) for n in range(20)])
        assert sorted(answers) == [False] * 19 + [True]

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_j12_who_waits_for_the_probes_row_believes_what_it_leaves(
        self, half_open: None, other: psycopg.Connection[Any], admin: psycopg.Connection[Any],
        end: str,
    ) -> None:  # fmt: skip
        params = {"host": HOST, "by": "first", "patience": 5000, "now": NOW + 1000}
        other.execute("BEGIN")
        assert other.execute(sql.PROBE_HOST, params).fetchall()
        with calling(partial(probing, "second")) as second:
            wait_until_blocked(admin, second)
            other.execute(end)
            assert second.answer() is (end == "ROLLBACK")

    def test_j12_a_probe_that_died_is_given_to_another(self, half_open: None) -> None:
        assert probing("dead")
        assert not probing("next", NOW + 5999)
        assert probing("next", NOW + 6000)
        assert not ending("dead", "succeeded", NOW + 6001), "it came too late"
        row = Host.objects.read(HOST, now=NOW + 6001)
        assert row is not None
        assert row.open_for <= 0

    def test_j12_while_open_nobody_probes(self, half_open: None) -> None:
        assert not probing("early", NOW + 999)

    def test_j12_a_success_closes_and_failures_double_the_pause(self, half_open: None) -> None:
        now = NOW + 1000
        for pause in (2000, 4000, 8000):
            assert probing("me", now)
            assert ending("me", "failed", now)
            row = Host.objects.read(HOST, now=now)
            assert row is not None
            assert row.open_for == pause
            now += pause
        assert probing("me", now)
        assert ending("me", "succeeded", now)
        assert Host.objects.read(HOST, now=now) is None

    def test_j12_a_probe_that_was_dropped_is_anybodys(self, half_open: None) -> None:
        assert probing("me")
        assert ending("me", "dropped")
        assert probing("you", NOW + 2001)

    def test_j12_of_many_that_see_it_fail_one_opens(self) -> None:
        answers = together([partial(Host.objects.open, HOST, "x", pause=60_000)] * 10)
        assert sorted(answers) == [False] * 9 + [True]
        assert Host.objects.get().openings == 1

    def test_j12_results_on_their_way_do_not_prolong_it(self, half_open: None) -> None:
        assert not Host.objects.open(HOST, "late", pause=99_000, now=NOW + 500)
        row = Host.objects.read(HOST, now=NOW + 500)
        assert row is not None
        assert row.open_for == 500

    def test_a_probe_that_was_under_way_when_an_operator_closed_is_not_believed(
        self, half_open: None
    ) -> None:
        assert probing("me")
        assert Host.objects.close(HOST)
        assert not ending("me", "failed")
        assert Host.objects.read(HOST, now=NOW + 2000) is None
        assert not Host.objects.close(HOST)

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_an_operator_who_closes_waits_for_the_end_of_a_probe(
        self, half_open: None, other: psycopg.Connection[Any], admin: psycopg.Connection[Any],
        end: str,
    ) -> None:  # fmt: skip
        """CLOSE_HOST: whichever comes last, the host is closed."""
        probing("me")
        params = {
            "host": HOST, "by": "me", "outcome": "failed", "pause": 1000, "longest": 9000,
            "now": NOW + 2000,
        }  # fmt: skip
        other.execute("BEGIN")
        other.execute(sql.END_PROBE, params)
        with calling(partial(Host.objects.close, HOST)) as closing:
            wait_until_blocked(admin, closing)
            other.execute(end)
            assert closing.answer()
        assert Host.objects.get().open_until is None

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_an_operator_who_opens_waits_for_a_worker_that_does(
        self, half_open: None, other: psycopg.Connection[Any], admin: psycopg.Connection[Any],
        end: str,
    ) -> None:  # fmt: skip
        """SHUT_HOST: the longer pause stands."""
        Host.objects.close(HOST)
        other.execute("BEGIN")
        other.execute(sql.OPEN_HOST, {"host": HOST, "pause": 90_000, "reason": "x", "now": NOW})
        shutting = partial(Host.objects.shut, HOST, "me", pause=60_000, now=NOW)
        with calling(shutting) as opening:
            wait_until_blocked(admin, opening)
            other.execute(end)
            assert opening.answer() is (end == "ROLLBACK")
        row = Host.objects.read(HOST, now=NOW)
        assert row is not None
        assert row.open_for == (90_000 if end == "COMMIT" else 60_000)

    def test_a_probe_that_was_under_way_when_an_operator_opened_does_not_close(
        self, half_open: None
    ) -> None:
        assert probing("me")
        assert Host.objects.shut(HOST, "maintenance", pause=60_000, now=NOW + 1500)
        assert not ending("me", "succeeded")
        assert not probing("you", NOW + 2000)


class TestRecalling:
    """RECALL_JOBS: what somebody has in hand, or has changed meanwhile, is left alone."""

    @pytest.fixture
    def ids(self) -> list[int]:
        jobs = [{"jobId": name, "topic": "orders", "url": "https://x.example/"} for name in "ab"]
        add_jobs([job_from(each) for each in jobs])
        Message.objects.update(scheduled_at=timezone.now() + timedelta(minutes=10))
        return list(Message.objects.order_by("key").values_list("id", flat=True))

    def test_what_another_holds_is_passed_over(
        self, ids: list[int], other: psycopg.Connection[Any], impatient: Any
    ) -> None:
        with other.transaction():
            other.execute("SELECT FROM delayed_queue WHERE id = %s FOR UPDATE", [ids[0]])
            assert Topic.objects.recall(ids, wait=0, spread=1) == ids[1:]

    def test_what_was_updated_or_leased_since_it_was_looked_at_is_left_alone(
        self, ids: list[int]
    ) -> None:
        job = {"jobId": "a", "topic": "orders", "url": "https://x.example/", "delay": 300}
        add_jobs([job_from(job)], if_exists=IfExists.UPDATE)
        Message.objects.filter(key="b").update(lease_id="held")
        assert Topic.objects.recall(ids, wait=0, spread=1) == []
        soonest = timezone.now() + timedelta(minutes=4)
        assert not Message.objects.filter(scheduled_at__lt=soonest).exists()

    def test_two_that_recall_the_same_move_each_forward_only(self, ids: list[int]) -> None:
        answers = together([partial(Topic.objects.recall, ids, wait=0, spread=1)] * 4)
        assert set().union(*answers) == set(ids)
        latest = timezone.now() + timedelta(seconds=1)
        assert Message.objects.filter(scheduled_at__lt=latest).count() == 2


@pytest.fixture
def endpoint() -> Endpoint:
    origin = "https://example.com"
    return Endpoint.objects.create(
        origin=origin, prefix=origin, secret="x", created_at=timezone.now()
    )


def holding(
    endpoint: Endpoint, holder: str, wanted: int, used: int = 0, now: int | None = None
) -> int:
    return Endpoint.objects.hold_slots(
        endpoint.id, holder, wanted, used, concurrency=5, patience=1000, now=now
    )


class TestSlots:
    def test_j12_twenty_workers_hold_no_more_than_there_are(self, endpoint: Endpoint) -> None:
        answers = together([partial(holding, endpoint, str(n), 2) for n in range(20)])
        assert sum(answers) == 5

    def test_j12_a_worker_waits_for_the_one_before(
        self, endpoint: Endpoint, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
    ) -> None:
        params = {
            "id": endpoint.id, "holder": "first", "wanted": 4, "used": 0, "concurrency": 5,
            "patience": 60_000, "now": None,
        }  # fmt: skip
        other.execute("BEGIN")
        other.execute(sql.LOCK_SLOTS, {"id": endpoint.id})
        assert other.execute(sql.HOLD_SLOTS, params).fetchall() == [(4,)]
        with calling(partial(holding, endpoint, "second", 5)) as second:
            wait_until_blocked(admin, second)
            other.execute("COMMIT")
            assert second.answer() == 1

    def test_j12_slots_of_a_worker_that_died_are_free_after_a_while(
        self, endpoint: Endpoint
    ) -> None:
        assert holding(endpoint, "dead", 5, now=NOW) == 5
        assert holding(endpoint, "alive", 3, now=NOW + 999) == 0
        assert holding(endpoint, "alive", 3, now=NOW + 1000) == 3
        assert list(Slot.objects.values_list("holder", flat=True)) == ["alive"]

    def test_j12_what_is_in_use_is_never_taken_away(self, endpoint: Endpoint) -> None:
        assert holding(endpoint, "a", 5, now=NOW) == 5
        assert holding(endpoint, "b", 5, now=NOW + 1000) == 5
        assert holding(endpoint, "a", 5, used=2, now=NOW + 1001) == 2


class TestEndpoints:
    def test_of_many_workers_that_meet_an_origin_one_makes_it(self) -> None:
        origin = "https://example.com"
        add = [partial(Endpoint.objects.add_once, origin, origin, f"s{n}") for n in range(10)]
        assert sorted(together(add)) == [False] * 9 + [True]
        assert Endpoint.objects.count() == 1

    def test_of_many_that_are_told_it_is_gone_one_disables(self, endpoint: Endpoint) -> None:
        answers = together([partial(Endpoint.objects.disable, endpoint.id, "gone")] * 10)
        assert sorted(answers) == [False] * 9 + [True]


URL: Final = "https://example.com/hook"
PREFIX: Final = "https://example.com/"
KIND: Final = "orders|callback"
BACKLOG: Final = {
    "host": HOST, "kind": KIND, "prefixes": [PREFIX], "after": 0, "after_id": 0, "limit": 100,
    "ahead": 0, "spread": 10_000, "half": 10, "delay": 60_000, "now": None,
}  # fmt: skip
CLAIM: Final = {
    "kind": KIND, "limit": 100, "lease_id": "lease", "retaken_id": "again", "lease": 600_000,
    "floor": NO_FLOOR, "now": None,
}  # fmt: skip


def due(count: int = 1, url: str = URL, **fields: Any) -> list[Message]:
    """Have callbacks that are due, in the order of their ids."""
    made = [MessageFactory.build(kind=KIND, headers={"url": url}, **fields) for _ in range(count)]
    return Message.objects.bulk_create(made)


def putting_off(limit: int = 100, delay: int | None = 60_000, **more: Any) -> BiteRow | None:
    params = {"limit": limit, "ahead": 0, "spread": 10_000, "half": 10, "delay": delay, **more}
    return Host.objects.put_off_backlog(HOST, KIND, [PREFIX], Beginning(0), **params)


def put_off() -> set[str]:
    later = Message.objects.filter(scheduled_at__gt=timezone.now())
    return set(later.values_list("key", flat=True))


def keys_of(messages: list[Message]) -> set[str]:
    return {each.key for each in messages}


def passing() -> int:
    """Put off in bites until there is nothing more, or another does it."""
    count, after = 0, Beginning(0)
    while True:
        bite = Host.objects.put_off_backlog(
            HOST, KIND, [PREFIX], after, limit=10, ahead=count, spread=10_000, half=10, delay=60_000
        )
        if bite is None:
            return count
        count += bite.put_off
        if bite.due_at is None or bite.id is None:
            return count
        after = Beginning(bite.due_at, bite.id)


class TestBacklogs:
    @pytest.fixture(autouse=True)
    def fresh(self) -> Iterator[None]:
        forget_topics()
        yield
        forget_topics()

    def test_j12_in_order_never_early_and_no_attempt_is_burned(self) -> None:
        made = due(30, scheduled_at=timezone.now(), attempts=2, last_error="refused")
        Host.objects.open(HOST, "timeout", pause=30_000)
        until = to_milliseconds(present(Host.objects.get().open_until))
        assert putting_off(delay=None) == (30, None, None)
        found = list(Message.objects.order_by("scheduled_at", "id"))
        assert [each.id for each in found] == [each.id for each in made]
        # Half of the spread for the first ten, less for each ten that follow.
        waits = [to_milliseconds(each.scheduled_at) - until for each in found]
        assert waits == [10_000 * place // (place + 10) for place in range(1, 31)]
        assert {(each.attempts, each.last_error, each.lease_id) for each in found} == {
            (2, "refused", None)
        }

    def test_j12_a_bite_goes_on_where_the_one_before_ended(self) -> None:
        """Due at one moment, so that ids tell where that is."""
        made = due(25, scheduled_at=timezone.now())
        assert passing() == 25
        found = list(Message.objects.order_by("scheduled_at", "id"))
        assert [each.id for each in found] == [each.id for each in made]

    def test_j12_only_what_is_due_and_for_this_host_and_not_leased(self) -> None:
        meant = due(2) + due(1, f"{PREFIX}?x=1") + due(1, "https://example.com")
        due(1, "https://example.com.evil.example/hook")
        due(1, "https://example.com:8443/hook")
        due(1, "http://example.com/hook")
        due(1, "https://example.org/https://example.com/")
        due(1, scheduled=True)
        due(1, leased=True)
        due(1, expired=True)
        for headers in (None, {}, [URL], URL, {"url": None}, {"url": [URL]}):
            MessageFactory.create(kind=KIND, headers=headers)
        MessageFactory.create(kind="bills|callback", headers={"url": URL})
        others = Message.objects.exclude(key__in=keys_of(meant))
        before = set(others.values_list("id", "scheduled_at", "lease_id", "attempts"))
        assert present(putting_off()).put_off == 4
        assert set(others.values_list("id", "scheduled_at", "lease_id", "attempts")) == before

    def test_j12_of_few_among_many_no_more_are_looked_at_than_a_bite(self) -> None:
        due(50, "https://example.org/hook", scheduled_at=timezone.now())
        due(1, scheduled_at=timezone.now())
        bite = present(putting_off(limit=20))
        assert bite.put_off == 0
        assert bite.id == sorted(Message.objects.values_list("id", flat=True))[19]

    @pytest.mark.parametrize("pause", [None, 0])
    def test_j12_of_a_host_that_is_not_open_nothing_is(self, pause: int | None) -> None:
        due(3)
        if pause is not None:
            Host.objects.open(HOST, "timeout", pause=pause)
        assert putting_off(delay=None) is None
        assert not put_off()

    def test_j12_not_before_the_end_of_a_pause_that_is_longer_than_the_delay(self) -> None:
        due(1)
        Host.objects.open(HOST, "timeout", pause=90_000)
        putting_off(delay=1000)
        until = present(Host.objects.get().open_until)
        assert Message.objects.get().scheduled_at >= until

    @pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
    def test_j12_of_two_workers_one_puts_off_and_the_other_is_told(
        self, other: psycopg.Connection[Any], end: str
    ) -> None:
        due(20)
        other.execute("BEGIN")
        ((count, _, _),) = other.execute(sql.PUT_OFF_BACKLOG, {**BACKLOG, "limit": 10}).fetchall()
        assert count == 10
        assert putting_off() is None
        other.execute(end)
        assert present(putting_off()).put_off == (10 if end == "COMMIT" else 20)

    def test_j12_two_hosts_and_two_shards_do_not_wait_for_each_other(
        self, other: psycopg.Connection[Any]
    ) -> None:
        due(1)
        other.execute("BEGIN")
        org = {"host": "example.org:443", "prefixes": ["https://example.org/"]}
        for more in (org, {"kind": "orders#1|callback"}):
            assert other.execute(sql.PUT_OFF_BACKLOG, {**BACKLOG, **more}).fetchall()
        assert present(putting_off()).put_off == 1
        other.execute("COMMIT")

    def test_j12_of_many_workers_each_message_is_put_off_by_one(self) -> None:
        due(300)
        answers = together([passing] * 8)
        assert passing() == 300 - sum(answers)
        assert len(put_off()) == 300

    def test_j12_what_others_hold_is_passed_over(self, other: psycopg.Connection[Any]) -> None:
        first, *rest = due(5)
        other.execute("BEGIN")
        other.execute("DELETE FROM delayed_queue WHERE id = %s", [first.id])
        assert present(putting_off()).put_off == 4
        other.execute("ROLLBACK")
        assert put_off() == keys_of(rest)
        assert present(putting_off()).put_off == 1

    def test_j3_a_delete_waits_for_a_bite_and_deletes(
        self, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
    ) -> None:
        (job,) = due(1)
        other.execute("BEGIN")
        other.execute(sql.PUT_OFF_BACKLOG, BACKLOG)
        with calling(partial(delete_job, "orders", job.key)) as deleting:
            wait_until_blocked(admin, deleting)
            other.execute("COMMIT")
            assert deleting.answer() is True
        assert not Message.objects.exists()

    def test_j12_what_is_being_leased_is_passed_over_and_then_is_leased(
        self, other: psycopg.Connection[Any]
    ) -> None:
        made = due(5)
        other.execute("BEGIN")
        leased = other.execute(sql.CLAIM, {**CLAIM, "limit": 2}).fetchall()
        assert present(putting_off()).put_off == 3
        other.execute("COMMIT")
        assert present(putting_off()).put_off == 0
        held = Message.objects.filter(lease_id="lease").values_list("id", "attempts")
        assert set(held) == {(row[0], 1) for row in leased} == {(each.id, 1) for each in made[:2]}

    def test_j12_a_claim_passes_over_a_bite_and_takes_what_is_behind_it(
        self, other: psycopg.Connection[Any]
    ) -> None:
        due(5)
        healthy = due(1, "https://example.org/hook")
        other.execute("BEGIN")
        other.execute(sql.PUT_OFF_BACKLOG, BACKLOG)
        queue = DelayedQueue("orders", kind=KIND, codec="bytes")
        assert {each.key for each in queue.try_poll_many(10)} == keys_of(healthy)
        other.execute("COMMIT")
        assert not queue.try_poll_many(10)


def claim_past(connection: psycopg.Connection[Any], limit: int = 100, **more: Any) -> list[Any]:
    params = {
        **CLAIM, "passed": [PREFIX], "after": NO_FLOOR, "after_id": 0, "looked": 1000,
        "limit": limit,
    }  # fmt: skip
    return sorted(connection.execute(sql.CLAIM_PASSING, {**params, **more}).fetchall())


class TestPassing:
    """The claims that pass over a backlog while it is put off."""

    def test_j12_what_is_for_others_is_leased(self, other: psycopg.Connection[Any]) -> None:
        due(3)
        wanted = due(2, "https://example.org/hook") + due(1, "https://example.com.evil.example/")
        for headers in (None, {}, [URL], URL, {"url": None}, {"url": [URL]}):
            wanted.append(MessageFactory.create(kind=KIND, headers=headers))
        due(1, "https://example.org/hook", scheduled=True)
        assert {row[1] for row in claim_past(other)} == keys_of(wanted)
        found = Message.objects.filter(headers__url=URL)
        assert list(found.values_list("lease_id", "attempts")) == [(None, 0)] * 3

    def test_j12_the_next_goes_on_behind_the_last_that_was_taken(
        self, other: psycopg.Connection[Any]
    ) -> None:
        """Due at one moment, so that ids tell where that is."""
        at = timezone.now()
        made = due(5, "https://example.org/hook", scheduled_at=at)
        first = claim_past(other, limit=2)
        # What comes back before it is for a claim from the start.
        Message.objects.filter(id=made[0].id).update(lease_id=None, scheduled_at=at)
        behind = {"after": first[-1][4], "after_id": first[-1][0]}
        assert [row[0] for row in claim_past(other, **behind)] == [each.id for each in made[2:]]

    def test_j12_of_many_it_looks_at_no_more_than_it_may(
        self, other: psycopg.Connection[Any]
    ) -> None:
        at = timezone.now()
        dead = due(20, scheduled_at=at)
        healthy = due(1, "https://example.org/hook", scheduled_at=at)
        rows, edge = without_edge(claim_past(other, looked=20))
        assert (rows, edge) == ([], (to_milliseconds(at), dead[-1].id))
        behind = {"after": present(edge)[0], "after_id": present(edge)[1]}
        rows, edge = without_edge(claim_past(other, looked=20, **behind))
        assert ([row[0] for row in rows], edge) == ([healthy[0].id], None)

    def test_j12_what_it_passes_over_it_does_not_hold(
        self, other: psycopg.Connection[Any], impatient: DelayedQueue
    ) -> None:
        due(3)
        healthy = due(2, "https://example.org/hook")
        other.execute("BEGIN")
        assert {row[1] for row in claim_past(other)} == keys_of(healthy)
        assert present(putting_off()).put_off == 3
        other.execute("COMMIT")

    def test_j12_what_others_hold_is_passed_over(
        self, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
    ) -> None:
        first, second = due(2, "https://example.org/hook")
        other.execute("SET lock_timeout = '200ms'")
        admin.execute("BEGIN")
        admin.execute("SELECT 1 FROM delayed_queue WHERE id = %s FOR UPDATE", [first.id])
        assert [row[1] for row in claim_past(other)] == [second.key]
        admin.execute("COMMIT")

    def test_j12_one_whose_lease_ran_out_comes_under_the_other_lease(
        self, other: psycopg.Connection[Any]
    ) -> None:
        due(1, "https://example.org/hook", expired=True)
        ((*_, is_retaken),) = claim_past(other)
        assert is_retaken

    def test_a_paused_queue_hands_out_nothing(self, other: psycopg.Connection[Any]) -> None:
        due(1, "https://example.org/hook")
        queue = DelayedQueue("orders", kind=KIND, codec="bytes")
        queue.pause("upgrade")
        assert claim_past(other) == []
        queue.resume()
        assert len(claim_past(other)) == 1


class TestAttempts:
    def test_prunes_pass_over_what_another_holds(
        self, other: psycopg.Connection[Any], django_db_setup: None
    ) -> None:
        for n in range(3):
            CallbackAttempt.objects.create(
                key=str(n), topic="t", kind="t|callback", webhook_id="m", attempt=1,
                started_at=n + 1, duration=1,
            )  # fmt: skip
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM delayed_queue_callback_attempt WHERE key = '1' FOR UPDATE")
        assert CallbackAttempt.objects.prune(0, 10, now=NOW) == 2
        other.execute("COMMIT")
        assert CallbackAttempt.objects.prune(0, 10, now=NOW) == 1
