"""Outcomes of the messages of a process that died."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.utils import timezone

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.models import Message
from delayed_queue.worker.board import InFlight
from delayed_queue.worker.process.crashes import CrashReport, give_back

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = ("a", "b", "c", "d")


@pytest.fixture
def queue() -> DelayedQueue:
    """A queue with four messages leased by one process."""
    queue = DelayedQueue("dead")
    queue.offer_batch(ScheduledMessage(key, 1) for key in KEYS)
    return queue


def row(key: str) -> dict[str, Any]:
    return dict(Message.objects.values("id", "attempts", "lease_id", "scheduled_at").get(key=key))


def is_due(key: str) -> bool:
    return bool(row(key)["scheduled_at"] <= timezone.now())


def in_flight(key: str, *, transactional: bool = False) -> InFlight:
    return InFlight(row(key)["id"], False, transactional)


def report(lease: str, *in_flight: InFlight, suspects: tuple[str, ...] = ()) -> CrashReport:
    leases = (lease, *suspects) if lease else ()
    return CrashReport(leases, in_flight, suspects, is_known=len(in_flight) == 1)


def marks() -> dict[str, str | None]:
    return dict(Message.objects.values_list("key", "lease_id"))


def attempts() -> list[int]:
    return list(Message.objects.order_by("key").values_list("attempts", flat=True))


def test_one_that_was_alone_is_counted_and_the_rest_released(queue: DelayedQueue) -> None:
    lease = queue.try_poll_many(4).lease_id
    give_back(report(lease, in_flight("b")), "default")
    assert all(is_due(key) for key in KEYS)
    assert attempts() == [0, 1, 0, 0]
    mark = marks()["b"]
    assert mark not in (None, lease)
    assert marks() == {"a": None, "b": mark, "c": None, "d": None}


def test_of_several_none_is_charged(queue: DelayedQueue) -> None:
    """Again and again: messages beside poison lose no attempt (O27)."""
    for _ in range(3):
        lease = queue.try_poll_many(4).lease_id
        give_back(report(lease, in_flight("a"), in_flight("c")), "default")
        assert attempts() == [0, 0, 0, 0]
        assert {key for key, mark in marks().items() if mark} == {"a", "c"}


def test_suspects_that_were_only_waiting_stay_suspects_uncounted(queue: DelayedQueue) -> None:
    waited = queue.try_poll_many(2).lease_id
    ours = queue.try_poll_many(2).lease_id
    Message.objects.filter(lease_id=waited).update(attempts=2)
    give_back(report(ours, in_flight("c"), suspects=(waited,)), "default")
    assert attempts() == [1, 1, 1, 0]
    assert {key for key, mark in marks().items() if mark} == {"a", "b", "c"}
    assert all(is_due(key) for key in KEYS)


def test_stale_and_foreign_leases_are_left_alone(queue: DelayedQueue) -> None:
    """Another worker has leased its messages, or a producer updated them."""
    ours = queue.try_poll_many(3).lease_id
    theirs = queue.try_poll_many(1).lease_id
    found = report(ours, *(in_flight(key) for key in "ad"))
    queue.offer_or_update("a", "new")
    before = row("a"), row("d")
    give_back(found, "default")
    assert (row("a"), row("d")) == before
    assert row("d")["lease_id"] == theirs
    assert not is_due("d")


def test_a_delivery_in_a_transaction_is_counted(queue: DelayedQueue) -> None:
    give_back(report("", in_flight("a", transactional=True)), "default")
    assert attempts() == [1, 0, 0, 0]
    assert row("a")["lease_id"]
    assert is_due("a")
    assert {row(key)["lease_id"] for key in "bcd"} == {None}


@pytest.mark.parametrize("transactional", [False, True])
def test_o27_crashes_are_numbered_in_the_last_error(queue, transactional):
    """The newest comes first; a handler's error restarts the numbers."""
    for cause in ("signal 11", "exit code 1"):
        lease = "" if transactional else queue.try_poll_many(4).lease_id
        hands = [in_flight(key, transactional=transactional) for key in "ab"]
        give_back(replace(report(lease, *hands), cause=cause), "default")
    beside = "in flight: dead/a, dead/b"
    assert Message.objects.get(key="a").last_error == (
        f"Crash 2: exit code 1; {beside}\nCrash 1: signal 11; {beside}"
    )
    assert Message.objects.get(key="c").last_error is None
    Message.objects.filter(key="a").update(last_error="ValueError")
    lease = "" if transactional else queue.try_poll_many(4).lease_id
    hand = in_flight("a", transactional=transactional)
    give_back(replace(report(lease, hand), cause="signal 9"), "default")
    found = Message.objects.get(key="a").last_error
    assert found == "Crash 1: signal 9; nothing else was in flight"


def test_a_delivery_in_a_transaction_is_not_counted_against_a_new_lease(queue):
    lease = queue.try_poll_many(4).lease_id
    give_back(report("", in_flight("a", transactional=True)), "default")
    assert (row("a")["attempts"], row("a")["lease_id"]) == (1, lease)
    assert not is_due("a")


def test_twice_is_harmless(queue: DelayedQueue) -> None:
    suspects = queue.try_poll_many(1).lease_id
    lease = queue.try_poll_many(3).lease_id
    found = report(lease, in_flight("b"), in_flight("c", transactional=True), suspects=(suspects,))
    give_back(found, "default")
    again = queue.try_poll_many(2)
    before = [row(key) for key in KEYS]
    give_back(found.leased(), "default")
    assert [row(key) for key in KEYS] == before
    assert len(again) == 2
