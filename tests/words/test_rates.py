"""The rule of all rate limits, and of permits taken ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.rates import Credit, RateRule, Room

RULES = st.builds(RateRule, st.sampled_from([1, 7, 40, 1000]), st.integers(1, 20))


def test_a_rested_limiter_has_its_burst_and_then_one_permit_per_interval() -> None:
    rule, spent, taken = RateRule(10, 3), None, []
    for now in (*[1000] * 4, 1009, 1010, 1011, 1020, 2000, 2000):
        taken.append(rule.permits(spent, now))
        spent = rule.spend(spent, now, min(taken[-1], 1))
    assert taken == [3, 2, 1, 0, 0, 1, 0, 1, 3, 2]


@given(rule=RULES, waits=st.lists(st.integers(0, 3000), max_size=30))
def test_no_window_has_more_than_the_burst_and_the_rate(rule: RateRule, waits: list[int]) -> None:
    spent, now, taken = None, 1_800_000_000_000, []
    for wait in waits:
        now += wait
        if rule.permits(spent, now):
            spent = rule.spend(spent, now)
            taken.append(now)
    for first, began in enumerate(taken):
        for last, ended in enumerate(taken[first:], first):
            assert last - first + 1 <= rule.burst + (ended - began) / rule.interval


@given(
    rate=st.floats(1e-3, 1e5), burst=st.integers(1, 100), number=st.integers(0, 100),
    start=st.integers(1_700_000_000_000, 1_800_000_000_000), later=st.integers(-2, 2),
)  # fmt: skip
def test_there_is_a_permit_from_exactly_the_time_of_the_next_one(rate, burst, number, start, later):
    """Otherwise a worker that slept until then would find none, and have no later time."""
    rule = RateRule(1000 / rate, burst)
    spent_until = start + rule.interval * number
    now = round(rule.due_at(spent_until)) + later
    found = rule.permits(spent_until, now)
    assert (found > 0) == (rule.next_permit(spent_until, now) <= now)
    assert found <= burst


@given(earlier=RULES, rule=RULES, count=st.integers(1, 20), back=st.integers(0, 10**7))
def test_an_earlier_rule_or_a_clock_set_back_costs_at_most_one_interval(earlier, rule, count, back):
    now = 1_800_000_000_000
    spent = earlier.spend(None, now, min(count, earlier.burst))
    assert rule.next_permit(spent, now - back) <= now - back + rule.interval
    assert rule.capped(spent, now - back) <= spent


def test_calls_that_wait_for_their_turn_start_one_interval_apart() -> None:
    rule, spent, starts = RateRule(0.25), None, []
    for now in (10.0, 10.0, 10.0, 10.1, 12.0, 12.0):
        starts.append(max(rule.due_at(spent), now))
        spent = rule.spend(spent, now)
    assert starts == [10.0, 10.25, 10.5, 10.75, 12.0, 12.25]


def test_credit_is_used_in_the_order_in_which_it_expires() -> None:
    credit = Credit()
    credit.add(10, 2)
    credit.add(20, 3)
    credit.use(1)
    credit.expire(10)
    assert credit.count == 3
    credit.use(1)
    credit.expire(19)
    assert credit.count == 2
    credit.expire(20)
    assert credit.count == 0


def test_n19_a_room_learns_from_refusals_and_grows_with_success():
    room = Room()
    assert all(room.enter() for _ in range(20))
    for _ in range(15):
        room.leave(is_refused=True)
    assert (room.used, room.limit) == (5, 5)
    assert not room.enter()
    for _ in range(5):
        room.leave(is_success=True)
    assert room.limit < 6
    for _ in range(100):
        assert room.enter()
        room.leave(is_success=True)
    assert 6 < room.limit < 8
    while room.used:
        room.leave()
    assert room.enter()
    room.leave(is_refused=True)
    assert room.limit == 1
