"""Backlogs of hosts that are open: put off, and passed over by claims (J12)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue
from delayed_queue.http.jobs.catalogue import forget_topics
from delayed_queue.http.jobs.finding import delete_job
from delayed_queue.http.models import Host
from delayed_queue.http.store.callbacks import PUT_OFF_BACKLOG, Beginning, BiteRow
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import Message
from delayed_queue.queue.store.claim import CLAIM, CLAIM_PASSING, NO_FLOOR, without_edge
from tests.factories import MessageFactory
from tests.races.answers import present
from tests.races.concurrency import calling, together, wait_until_blocked

HOST: Final = "example.com:443"
pytestmark = pytest.mark.django_db(transaction=True)
URL: Final = "https://example.com/hook"
PREFIX: Final = "https://example.com/"
KIND: Final = "orders|callback"
BACKLOG: Final = {
    "host": HOST, "kind": KIND, "prefixes": [PREFIX], "after": 0, "after_id": 0, "limit": 100,
    "ahead": 0, "spread": 10_000, "half": 10, "delay": 60_000, "now": None,
}  # fmt: skip
CLAIMING: Final = {
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
        ((count, _, _),) = other.execute(PUT_OFF_BACKLOG, {**BACKLOG, "limit": 10}).fetchall()
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
            assert other.execute(PUT_OFF_BACKLOG, {**BACKLOG, **more}).fetchall()
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
        other.execute(PUT_OFF_BACKLOG, BACKLOG)
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
        leased = other.execute(CLAIM, {**CLAIMING, "limit": 2}).fetchall()
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
        other.execute(PUT_OFF_BACKLOG, BACKLOG)
        queue = DelayedQueue("orders", kind=KIND, codec="bytes")
        assert {each.key for each in queue.try_poll_many(10)} == keys_of(healthy)
        other.execute("COMMIT")
        assert not queue.try_poll_many(10)


def claim_past(connection: psycopg.Connection[Any], limit: int = 100, **more: Any) -> list[Any]:
    params = {
        **CLAIMING, "passed": [PREFIX], "after": NO_FLOOR, "after_id": 0, "looked": 1000,
        "limit": limit,
    }  # fmt: skip
    return sorted(connection.execute(CLAIM_PASSING, {**params, **more}).fetchall())


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
