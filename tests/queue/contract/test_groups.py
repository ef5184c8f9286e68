"""Groups: concurrency, order, fair turns and rates (G1-G6, G11, G12)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from delayed_queue import DelayedQueue, Groups, OfferOutcome, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.queue.groups import HeldGroup
from delayed_queue.testing import ManualClock, dead_letters
from tests.queue.contract.support import DAY, HOUR, MILLISECOND, MINUTE, SECOND, leased, polled_keys


def offer(queue: DelayedQueue, *names: str) -> None:
    """Offer messages named by group and number, ``a1``; without a letter they have no group."""
    queue.offer_batch(
        [ScheduledMessage(name, name, group=name.rstrip("0123456789") or None) for name in names]
    )


def offer_many(queue: DelayedQueue, group: str, count: int) -> None:
    offer(queue, *(f"{group}{number:05}" for number in range(count)))


# G1


def test_g1_the_group_travels_with_the_message(queue: DelayedQueue):
    queue.offer_or_update("k", 1, group="customer-42")
    stored = queue.read("k")
    assert stored is not None
    assert stored.group == "customer-42"
    assert leased(queue).group == "customer-42"


def test_g1_an_offer_that_replaces_a_message_writes_its_group_anew(queue: DelayedQueue):
    for group in ("a", "b", None):
        queue.offer_or_update("k", f"payload of {group}", group=group)
        stored = queue.read("k")
        assert stored is not None
        assert stored.group == group


def test_g1_a_dead_letter_keeps_its_group_and_a_redrive_restores_it(queue: DelayedQueue):
    offer(queue, "a1")
    leased(queue).reject("no")
    (letter,) = dead_letters(queue)
    assert letter.group == "a"
    queue.redrive([letter.id])
    assert leased(queue).group == "a"


@pytest.mark.parametrize("group", ["", "x" * 101, "a\x00b", "\ud800", 7])
def test_g11_a_bad_group_is_refused(queue: DelayedQueue, group: str):
    with pytest.raises(InvalidMessage, match="group"):
        queue.offer_or_update("k", 1, group=group)
    with pytest.raises(InvalidMessage, match="group"):
        queue.offer_batch([ScheduledMessage("k", 1, group=group)])
    with pytest.raises(InvalidMessage, match="group"):
        queue.groups.pause(group)


def test_without_limits_groups_are_no_matter(queue: DelayedQueue):
    offer(queue, "a1", "a2", "b1", "1")
    assert polled_keys(queue) == ["a1", "a2", "b1", "1"]


# G2


def test_g2_no_more_of_a_group_are_leased_than_its_limit(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=2))
    offer(queue, "a1", "a2", "a3", "b1")
    batch = queue.try_poll_many(10)
    assert [each.key for each in batch] == ["a1", "a2", "b1"]
    assert polled_keys(queue) == []
    assert batch[0].acknowledge()
    assert polled_keys(queue) == ["a3"]


@pytest.mark.parametrize("end", ["acknowledge", "release", "reject"])
def test_g2_however_a_lease_ends_its_slot_is_free(queue: DelayedQueue, end: str):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    envelope = leased(queue)
    ends = {
        "acknowledge": envelope.acknowledge,
        "release": lambda: envelope.release(MINUTE),
        "reject": lambda: envelope.reject("no"),
    }
    assert ends[end]()
    assert polled_keys(queue) == ["a2"]


def test_g2_a_lease_that_ran_out_holds_its_slot_until_it_is_taken_again_in_it(queue, clock):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    first = leased(queue)
    clock.advance(HOUR)
    again = queue.try_poll_many(10)
    assert [each.key for each in again] == ["a1"]
    assert not first.extend()
    assert polled_keys(queue) == []


def test_g2_a_lease_that_is_extended_late_finds_its_slot_free(queue, clock):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    first = leased(queue)
    clock.advance(HOUR)
    assert first.extend()
    assert polled_keys(queue) == []


def test_g2_a_message_that_is_replaced_or_dropped_frees_its_slot(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2", "b1", "b2")
    assert polled_keys(queue) == ["a1", "b1"]
    queue.offer_or_update("a1", "anew", delay=HOUR, group="a")
    queue.drop_message("b1")
    assert polled_keys(queue) == ["a2", "b2"]


def test_messages_without_a_group_have_no_limit(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2", "1", "2", "3")
    assert sorted(polled_keys(queue)) == ["1", "2", "3", "a1"]


def test_a_group_is_found_among_many_that_have_nothing_but_leases(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, *(f"{chr(97 + n // 26)}{chr(97 + n % 26)}1" for n in range(60)))
    assert len(queue.try_poll_many(60)) == 60
    offer(queue, "cgz1")  # the last one in the rotation from "ch"
    assert polled_keys(queue, 1) == ["cgz1"]


def test_messages_without_a_group_are_found_behind_many_that_are_held_back(queue, clock):
    queue.groups.set(Groups(concurrency=1))
    offer_many(queue, "a", 1200)
    assert polled_keys(queue) == ["a00000"]
    clock.advance(SECOND)
    offer(queue, "1")
    assert polled_keys(queue) == ["1"]


def test_one_that_is_scheduled_for_later_does_not_take_the_turn_of_what_is_due(queue, clock):
    """Found by the state machine."""
    offer(queue, "1")
    first = leased(queue)
    queue.offer_or_update("a1", 1, delay=SECOND, group="a")
    queue.groups.set(Groups(order="fifo"))
    assert first.acknowledge()
    offer(queue, "2")
    assert leased(queue).key == "2"
    clock.advance(SECOND)
    assert leased(queue).key == "a1"


def test_of_one_group_limits_differ(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    queue.groups.limit("a", concurrency=3)
    offer(queue, "a1", "a2", "a3", "a4", "b1", "b2")
    assert sorted(polled_keys(queue)) == ["a1", "a2", "a3", "b1"]


def test_g6_a_limit_that_is_lowered_holds_from_the_next_claim_on(queue, clock):
    queue.groups.set(Groups(concurrency=3))
    offer(queue, "a1", "a2", "a3", "a4")
    first = queue.try_poll_many(3)
    queue.groups.set(Groups(concurrency=1))
    assert first[0].acknowledge()
    assert first[1].acknowledge()
    assert polled_keys(queue) == []
    assert first[2].acknowledge()
    assert polled_keys(queue) == ["a4"]


def test_g6_where_many_ran_out_under_an_older_limit_they_are_taken_one_by_one(queue, clock):
    queue.groups.set(Groups(concurrency=3))
    offer(queue, "a1", "a2", "a3")
    queue.try_poll_many(3)
    queue.groups.set(Groups(concurrency=1))
    clock.advance(HOUR)
    batch = queue.try_poll_many(3)
    assert len(batch) == 1
    assert polled_keys(queue) == []
    assert batch.acknowledge() == 1
    assert len(polled_keys(queue)) == 1


def test_g6_when_the_limits_are_cleared_claims_are_plain_again(make_queue, clock):
    queue, another = (make_queue("orders", clock=clock) for _ in range(2))
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2", "a3")
    assert polled_keys(queue) == ["a1"]
    another.groups.clear()
    assert polled_keys(queue) == ["a2", "a3"]
    with queue.consume() as envelope:
        assert envelope is None


def test_what_has_limits_is_not_consumed(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1")
    with pytest.raises(InvalidConfiguration, match="has limits"), queue.consume():
        pass
    assert polled_keys(queue) == ["a1"]


# G3


@pytest.fixture
def ordered(queue: DelayedQueue) -> DelayedQueue:
    queue.groups.set(Groups(order="fifo"))
    return queue


@pytest.mark.parametrize("is_limited", [False, True])
def test_a_poll_may_ask_for_more_than_there_are_integers(make_queue, clock, is_limited):
    queue = make_queue("many", clock=clock)
    if is_limited:
        queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "b1")
    assert len(queue.try_poll_many(2**40)) == 2


def test_g3_one_after_the_other_in_their_order(ordered: DelayedQueue):
    offer(ordered, "a2", "a1", "b1")
    batch = ordered.try_poll_many(10)
    assert [each.key for each in batch] == ["a2", "b1"]
    assert polled_keys(ordered) == []
    assert batch[0].acknowledge()
    assert polled_keys(ordered) == ["a1"]


def test_g3_nothing_passes_one_that_waits_for_a_retry(ordered: DelayedQueue, clock: ManualClock):
    offer(ordered, "a1", "a2")
    assert leased(ordered).release(MINUTE, "busy")
    assert polled_keys(ordered) == []
    clock.advance(MINUTE)
    assert polled_keys(ordered) == ["a1"]


def test_g3_what_was_begun_goes_before_what_fell_due_earlier(ordered, clock):
    offer(ordered, "a1", "a2", "a3")
    assert leased(ordered).release(MINUTE)
    clock.advance(HOUR)
    assert [leased(ordered).key] == ["a1"]


def test_g3_a_later_schedule_holds_nothing_up(ordered: DelayedQueue, clock: ManualClock):
    ordered.offer_or_update("a1", 1, delay=HOUR, group="a")
    offer(ordered, "a2")
    assert polled_keys(ordered) == ["a2"]


def test_g3_a_dead_letter_lets_the_next_pass(ordered: DelayedQueue):
    offer(ordered, "a1", "a2")
    leased(ordered).reject("no")
    assert polled_keys(ordered) == ["a2"]


@pytest.fixture
def blocking(queue: DelayedQueue) -> DelayedQueue:
    """A queue with a group that a dead letter blocks."""
    queue.groups.set(Groups(order="fifo", on_dead="block"))
    offer(queue, "a1", "a2")
    leased(queue).reject("no")
    offer(queue, "b1")
    assert polled_keys(queue) == ["b1"]
    return queue


def test_g3_a_dead_letter_blocks_until_it_is_redriven_and_goes_first(blocking, clock):
    clock.advance(SECOND)
    blocking.redrive([letter.id for letter in dead_letters(blocking)])
    assert polled_keys(blocking) == ["a1"]


def test_g3_a_dead_letter_blocks_until_it_is_dropped(blocking: DelayedQueue):
    blocking.redrive([letter.id for letter in dead_letters(blocking)])
    assert blocking.drop_message("a1")
    assert polled_keys(blocking) == ["a2"]


def test_g3_a_dead_letter_that_blocks_is_not_pruned(blocking: DelayedQueue, clock: ManualClock):
    blocking.offer_or_update("1", None)
    leased(blocking).reject("no")
    clock.advance(DAY)
    assert blocking.prune_dead_letters(timedelta(0)) == 1
    assert polled_keys(blocking) == ["b1"]
    assert [letter.key for letter in dead_letters(blocking)] == ["a1"]
    assert blocking.groups.resume("a")
    assert blocking.prune_dead_letters(timedelta(0)) == 1
    assert polled_keys(blocking) == ["a2"]


def test_g3_a_dead_letter_whose_key_is_in_use_blocks_until_the_group_is_resumed(blocking, clock):
    (letter,) = dead_letters(blocking)
    offer(blocking, "a1")
    clock.advance(SECOND)
    assert blocking.redrive([letter.id]) == {letter.id: OfferOutcome.IGNORED}
    assert polled_keys(blocking) == []
    assert blocking.groups.resume("a")
    assert polled_keys(blocking) == ["a2"]


def test_g3_a_dead_letter_blocks_until_the_group_is_resumed(blocking, clock):
    assert blocking.groups.resume("a")
    batch = blocking.try_poll_many(10)
    assert [each.key for each in batch] == ["a2"]
    clock.advance(SECOND)
    offer(blocking, "a3")
    assert batch[0].reject("no")
    assert polled_keys(blocking) == []
    assert not blocking.groups.resume("b")


# G4


def test_g4_groups_take_turns(queue: DelayedQueue):
    queue.groups.set(Groups())
    offer_many(queue, "a", 50)
    offer(queue, "b1", "c1", "c2")
    batch = polled_keys(queue, 6)
    assert {"b1", "c1"} <= set(batch)
    assert set(polled_keys(queue, 6)) & {"b1", "c1", "c2"} <= {"c2"}


def test_g4_a_claim_is_filled_by_whom_has_more_where_others_have_one(queue: DelayedQueue):
    queue.groups.set(Groups())
    offer(queue, *(f"{name}1" for name in "bcdefgh"))
    offer_many(queue, "a", 50)
    assert Counter(each.group for each in queue.try_poll_many(40)) == {
        "a": 33, **dict.fromkeys("bcdefgh", 1),
    }  # fmt: skip


def test_g4_a_claim_of_one_goes_on_with_the_next_group(queue: DelayedQueue):
    queue.groups.set(Groups())
    for group in "abc":
        offer_many(queue, group, 10)
    assert [leased(queue).group for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_g4_by_weight(queue: DelayedQueue):
    queue.groups.set(Groups())
    queue.groups.limit("a", weight=3)
    for group in "ab":
        offer_many(queue, group, 40)
    one_by_one = Counter(leased(queue).group for _ in range(16))
    assert one_by_one == {"a": 12, "b": 4}
    assert Counter(each.group for each in queue.try_poll_many(16)) == {"a": 12, "b": 4}


def test_g4_a_weight_that_is_lowered_holds_for_a_turn_that_was_cut_short(queue: DelayedQueue):
    queue.groups.set(Groups())
    queue.groups.limit("a", weight=10)
    for group in "ab":
        offer_many(queue, group, 40)
    assert leased(queue).group == "a"
    queue.groups.limit("a", weight=1)
    assert Counter(each.group for each in queue.try_poll_many(10)) == {"a": 5, "b": 5}


def test_g4_messages_without_a_group_have_turns_like_one(queue: DelayedQueue):
    queue.groups.set(Groups())
    for group in "ab":
        offer_many(queue, group, 10)
    offer(queue, "1", "2")
    assert [leased(queue).group for _ in range(7)] == ["a", "b", None, "a", "b", None, "a"]


def test_g4_what_was_begun_of_a_group_that_has_nothing_else_has_its_turn(queue, clock):
    queue.groups.set(Groups())
    offer(queue, "a1")
    leased(queue)
    clock.advance(HOUR)
    offer(queue, "b1", "b2", "c1", "c2")
    assert [leased(queue).key for _ in range(4)] == ["b1", "c1", "a1", "b2"]


def test_g4_a_hundred_equal_tenants_have_equal_shares(queue: DelayedQueue):
    """Jain's index of the messages started while all groups had work."""
    queue.groups.set(Groups(concurrency=50))
    for number in range(100):
        offer_many(queue, f"tenant-{number:03}-", 6 if number else 50)
    begun: Counter[str | None] = Counter()
    while begun.total() < 500:
        batch = queue.try_poll_many(7)
        begun.update(each.group for each in batch)
        batch.acknowledge()
    shares = [begun[f"tenant-{number:03}-"] for number in range(100)]
    assert sum(shares) ** 2 / (100 * sum(each**2 for each in shares)) >= 0.95


def test_unfair_groups_go_by_what_is_most_overdue(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(fair=False))
    offer(queue, "b1", "b2", "b3")
    clock.advance(SECOND)
    offer(queue, "a1")
    assert polled_keys(queue, 3) == ["b1", "b2", "b3"]


def test_an_unfair_claim_is_filled_by_the_next_groups(queue: DelayedQueue):
    queue.groups.set(Groups(fair=False))
    offer(queue, "a1", "a2", "b1", "b2", "c1", "c2")
    assert polled_keys(queue, 5) == ["a1", "a2", "b1", "b2", "c1"]


# G5


def test_g5_so_many_of_a_group_are_started(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(rate="10/m"))
    offer_many(queue, "a", 5)
    offer(queue, "b1")
    assert polled_keys(queue) == ["a00000", "b1"]
    assert polled_keys(queue) == []
    clock.advance(6 * SECOND - MILLISECOND)
    assert polled_keys(queue) == []
    clock.advance(MILLISECOND)
    assert polled_keys(queue) == ["a00001"]


def test_g5_a_burst_is_kept_for_after_a_rest(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(rate="10/s", burst=3))
    offer_many(queue, "a", 20)
    assert len(polled_keys(queue)) == 3
    clock.advance(100 * MILLISECOND)
    assert len(polled_keys(queue)) == 1
    clock.advance(HOUR)
    assert len(polled_keys(queue)) == 3


def test_g5_a_rate_of_the_queue_counts_all_and_those_without_a_group(queue, clock):
    queue.groups.set(Groups(queue_rate="2/s", queue_burst=2))
    offer(queue, "a1", "b1", "1")
    assert len(polled_keys(queue)) == 2
    assert polled_keys(queue) == []
    clock.advance(SECOND / 2)
    assert len(polled_keys(queue)) == 1


def test_g5_over_any_time_no_more_than_the_rate(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(rate="7/s"))
    offer_many(queue, "a", 40)
    started = 0
    for _ in range(2000):
        started += len(polled_keys(queue, 5))
        clock.advance(MILLISECOND)
    assert started == 14


def test_g5_of_one_group_the_rate_differs(queue: DelayedQueue):
    queue.groups.set(Groups(rate="1/h"))
    queue.groups.limit("a", rate="1/h", burst=2)
    offer(queue, "a1", "a2", "a3", "b1", "b2")
    assert sorted(polled_keys(queue)) == ["a1", "a2", "b1"]


# G6: a rate that is raised


def _raise_by_set(queue: DelayedQueue) -> None:
    queue.groups.set(Groups(rate="10/s"))


def _raise_by_declaring(queue: DelayedQueue) -> None:
    queue.groups.declare(Groups(rate="10/s"))


def _raise_of_one_group(queue: DelayedQueue) -> None:
    queue.groups.limit("a", rate="10/s")


def _raise_after_a_clear(queue: DelayedQueue) -> None:
    queue.groups.clear()
    queue.groups.set(Groups(rate="10/s"))


@pytest.mark.parametrize(
    "change", [_raise_by_set, _raise_by_declaring, _raise_of_one_group, _raise_after_a_clear]
)
@pytest.mark.parametrize("is_polled", [False, True])
def test_g6_a_raised_rate_holds_at_once(queue, clock, change, is_polled):
    """With and without a poll before its first permit."""
    queue.groups.set(Groups(rate="1/d"))
    offer(queue, "a1", "a2", "a3")
    assert polled_keys(queue) == ["a1"]
    change(queue)
    assert not is_polled or polled_keys(queue) == []
    clock.advance(SECOND / 10)
    assert polled_keys(queue) == ["a2"]
    assert polled_keys(queue) == []


def test_g6_a_raised_rate_of_the_queue_holds_at_once(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(queue_rate="1/d", queue_burst=2))
    offer(queue, "a1", "b1", "1", "2")
    assert len(polled_keys(queue)) == 2
    queue.groups.set(Groups(queue_rate="10/s"))
    assert polled_keys(queue) == []
    clock.advance(SECOND / 10)
    assert len(polled_keys(queue)) == 1


def test_g6_a_smaller_burst_owes_no_more_than_itself(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(rate="1/s", burst=100))
    offer_many(queue, "a", 110)
    assert len(polled_keys(queue, 200)) == 100
    queue.groups.set(Groups(rate="1/s"))
    assert polled_keys(queue) == []
    clock.advance(SECOND)
    assert len(polled_keys(queue)) == 1


def test_g6_what_was_spent_outlives_a_change_that_allows_no_more(queue, clock):
    queue.groups.set(Groups(rate="1/s"))
    offer(queue, "a1", "a2")
    assert polled_keys(queue) == ["a1"]
    queue.groups.clear()
    queue.groups.set(Groups(rate="1/d", burst=2))
    queue.groups.set(Groups(rate="1/s"))
    assert polled_keys(queue) == []
    clock.advance(SECOND)
    assert polled_keys(queue) == ["a2"]


@pytest.mark.parametrize("rules", [Groups(rate="1/s"), Groups(queue_rate="1/s")])
def test_g6_a_clock_that_is_set_back_closes_nothing(queue, clock, rules):
    queue.groups.set(rules)
    offer(queue, "a1", "a2", "a3")
    now = clock()
    clock.advance(HOUR)
    assert "a1" in polled_keys(queue)
    clock.set(now)
    assert polled_keys(queue) == []
    (throttled,) = [each for each in queue.groups.held() if each.name == "a"]
    assert throttled.until in (None, round(now.timestamp() * 1000) + 1000)
    clock.advance(SECOND)
    assert len(polled_keys(queue)) == 1


# G6, G9


def test_g9_a_group_is_paused_and_resumed(queue: DelayedQueue):
    offer(queue, "a1", "b1", "1")
    assert queue.groups.pause("a", "moving house", by="op")
    assert not queue.groups.pause("a")
    assert sorted(polled_keys(queue)) == ["1", "b1"]
    assert queue.groups.resume("a")
    assert not queue.groups.resume("a")
    assert polled_keys(queue) == ["a1"]


def test_a_queue_that_is_paused_hands_out_nothing_whatever_its_limits(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "1")
    assert queue.pause()
    assert polled_keys(queue) == []
    assert queue.resume()
    assert not queue.is_paused()
    assert sorted(polled_keys(queue)) == ["1", "a1"]
    offer(queue, "a2")
    assert polled_keys(queue) == []


def test_what_a_handler_declares_leaves_what_an_operator_changed_since(queue: DelayedQueue):
    queue.groups.declare(Groups(concurrency=2))
    queue.groups.set(Groups(concurrency=1))
    queue.groups.declare(Groups(concurrency=2))
    offer(queue, "a1", "a2", "a3")
    assert polled_keys(queue) == ["a1"]
    queue.groups.declare(Groups(concurrency=3))
    assert polled_keys(queue) == ["a2", "a3"]


def test_a_handler_that_declares_nothing_takes_back_what_it_declared(queue: DelayedQueue):
    offer(queue, "a1", "a2", "a3")
    queue.groups.declare(None)
    queue.groups.declare(Groups(concurrency=1))
    assert polled_keys(queue) == ["a1"]
    queue.groups.declare(None)
    assert polled_keys(queue) == ["a2", "a3"]
    queue.groups.set(Groups(concurrency=1))
    queue.groups.declare(None)
    offer(queue, "a4")
    assert polled_keys(queue) == []


def test_g9_what_is_held_back_and_why(queue: DelayedQueue, clock: ManualClock):
    offer(queue, "a1", "a2", "b1", "c1", "c2")
    queue.groups.set(Groups(concurrency=1))
    queue.groups.limit("c", rate="1/m", concurrency=5)
    queue.groups.pause("b")
    assert polled_keys(queue) == ["a1", "c1"]
    now = round(clock().timestamp() * 1000)
    assert queue.groups.held() == [
        HeldGroup("a", "full", None, now, 1, 1),
        HeldGroup("b", "paused", None, now, 0, 1),
        HeldGroup("c", "throttled", now + 60_000, now, 1, 5),
    ]


def test_g9_a_group_that_waits_for_a_retry_or_is_blocked(blocking: DelayedQueue):
    offer(blocking, "b2", "d1")
    assert leased(blocking).release(MINUTE)
    offer(blocking, "d2")
    reasons = {each.name: each.reason for each in blocking.groups.held()}
    assert reasons == {"a": "blocked", "b": "full", "d": "waiting"}


def test_g9_a_pause_of_the_queue_holds_its_groups(queue: DelayedQueue):
    queue.groups.set(Groups(concurrency=1))
    offer(queue, "a1", "a2")
    leased(queue)
    offer(queue, "b1")
    queue.offer_or_update("c1", None, delay=HOUR, group="c")
    queue.pause()
    held = {each.name: (each.reason, each.until) for each in queue.groups.held()}
    assert held == {"a": ("full", None), "b": ("queue_paused", None), "c": ("", None)}


def test_g9_a_rate_of_the_queue_holds_its_groups(queue: DelayedQueue, clock: ManualClock):
    queue.groups.set(Groups(queue_rate="1/m"))
    offer(queue, "a1")
    assert {each.reason for each in queue.groups.held()} == {""}
    assert polled_keys(queue) == ["a1"]
    offer(queue, "b1")
    (held,) = [each for each in queue.groups.held() if each.name == "b"]
    now = round(clock().timestamp() * 1000)
    assert (held.reason, held.until) == ("queue_throttled", now + 60_000)


# Refused rules


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ({"concurrency": 0}, "1 to 10000"),
        ({"concurrency": 10_001}, "1 to 10000"),
        ({"concurrency": True}, "1 to 10000"),
        ({"order": "lifo"}, "any, fifo"),
        ({"on_dead": "stop"}, "pass, block"),
        ({"fair": None}, "True, False"),
        ({"order": "fifo", "concurrency": 2}, "one at a time"),
        ({"rate": "0/s"}, "above zero"),
        ({"rate": "10"}, "not a rate"),
        ({"queue_rate": "10/y"}, "not a rate"),
        ({"burst": 5}, "needs a rate"),
        ({"queue_burst": 5}, "needs a queue_rate"),
        ({"rate": "1/s", "burst": 0}, "1 to 10000"),
    ],
)
def test_g11_rules_that_make_no_sense_are_refused(rules: dict[str, object], says: str):
    with pytest.raises(InvalidConfiguration, match=says):
        Groups(**rules)  # type: ignore[arg-type]
