"""When a lane looks and from where, on a clock that is moved by hand."""

from __future__ import annotations

import time

import pytest

from delayed_queue.messages import Envelope
from delayed_queue.queue.store.claim import CLAIM, CLAIM_PASSING
from delayed_queue.worker.lanes import (
    BACK_MS,
    DEEP_LOOK_SHARE,
    FULL_LOOK_INTERVALS,
    MARGIN_MS,
    PASSING_SECONDS,
    Lane,
    Look,
    lanes_of,
)
from delayed_queue.worker.options import WorkerOptions
from tests.running import handler_of, registry_with

POLL = 3.0
LIMIT = 10
DUE = 1_800_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


@pytest.fixture
def lane(clock: Clock) -> Lane:
    def handle(envelope: Envelope) -> None: ...

    (lane,) = lanes_of(WorkerOptions(), registry_with(handler_of("looked at", handle)))
    assert lane.longest_sleep == POLL
    return lane


def look(
    lane: Lane,
    clock: Clock,
    found: int = 0,
    *,
    latest: int | None = None,
    wait_ms: int | None = None,
    seconds: float = 0.001,
) -> Look:
    begun = lane.begin_look(LIMIT)
    clock.now += seconds
    lane.end_look(begun, found, latest, wait_ms)
    return begun


def test_two_looks_come_before_a_sleep_and_the_second_asks_ahead(lane: Lane, clock: Clock):
    assert not look(lane, clock).looks_ahead
    assert lane.look_at <= clock.now
    second = look(lane, clock)
    assert second.looks_ahead
    assert lane.look_at == second.began_at + POLL


def test_it_sleeps_until_the_next_message_is_due(lane: Lane, clock: Clock):
    look(lane, clock)
    second = look(lane, clock, wait_ms=400)
    assert lane.look_at == second.began_at + 0.4


def test_a_full_claim_is_followed_by_another_that_asks_nothing(lane: Lane, clock: Clock):
    look(lane, clock, 3)
    assert look(lane, clock, LIMIT).looks_ahead
    assert lane.look_at <= clock.now
    assert not look(lane, clock).looks_ahead


def test_woken_it_looks_at_once_and_twice(lane: Lane, clock: Clock):
    look(lane, clock)
    look(lane, clock)
    lane.wake()
    assert lane.look_at <= clock.now
    assert not look(lane, clock).looks_ahead
    assert lane.look_at <= clock.now


def test_what_was_announced_during_the_second_look_is_not_slept_over(lane: Lane, clock: Clock):
    look(lane, clock)
    second = lane.begin_look(LIMIT)
    lane.wake()
    lane.end_look(second, 0, None, None)
    assert lane.look_at <= clock.now


def test_after_a_full_look_others_begin_below_the_latest_due_time(lane: Lane, clock: Clock):
    assert look(lane, clock, LIMIT, latest=DUE).is_full
    assert look(lane, clock, LIMIT, latest=DUE - 5000).floor == DUE - MARGIN_MS
    # The mark only rises.
    assert look(lane, clock, LIMIT, latest=DUE + 70).floor == DUE - MARGIN_MS
    assert look(lane, clock, LIMIT).floor == DUE + 70 - MARGIN_MS


def test_a_busy_lane_looks_from_the_start_now_and_then(lane: Lane, clock: Clock):
    pause = 0.004 * DEEP_LOOK_SHARE
    look(lane, clock, LIMIT, latest=DUE, seconds=0.004)
    clock.now += 0.9 * pause
    assert not look(lane, clock, LIMIT, latest=DUE, seconds=0).is_full
    clock.now += 0.2 * pause
    assert look(lane, clock, LIMIT, latest=DUE).is_full


def test_slow_looks_from_the_start_are_rare_and_looks_back_are_not(lane: Lane, clock: Clock):
    for _ in range(12):
        clock.now += FULL_LOOK_INTERVALS * POLL
        full = look(lane, clock, LIMIT, latest=DUE, seconds=2.0)
        assert full.is_full
    clock.now = full.began_at + 0.99 * POLL
    assert look(lane, clock, LIMIT, latest=DUE, seconds=0).floor == DUE - MARGIN_MS
    clock.now = full.began_at + POLL
    back = look(lane, clock, LIMIT, latest=DUE, seconds=0)
    assert (back.floor, back.is_full) == (DUE - MARGIN_MS - BACK_MS, False)
    clock.now = full.began_at + 0.99 * FULL_LOOK_INTERVALS * POLL
    assert not look(lane, clock, LIMIT, latest=DUE, seconds=0).is_full
    clock.now = full.began_at + FULL_LOOK_INTERVALS * POLL
    assert look(lane, clock, LIMIT, latest=DUE).is_full


def test_one_slow_answer_is_not_yet_a_slow_look(lane: Lane, clock: Clock):
    look(lane, clock, LIMIT, latest=DUE, seconds=2.0)
    assert look(lane, clock, LIMIT, latest=DUE).is_full


def test_a_look_back_that_met_old_messages_expects_more(lane: Lane, clock: Clock):
    look(lane, clock, LIMIT, latest=DUE)
    lane._full_look_at = clock.now + 10 * POLL
    clock.now += POLL
    assert look(lane, clock, LIMIT, latest=DUE - 5_000).looks_back
    assert look(lane, clock, LIMIT).floor == DUE - 5_000 - MARGIN_MS


def test_before_a_long_sleep_it_looks_from_the_start(lane: Lane, clock: Clock):
    """The messages before the mark are taken by the time it sleeps, if they were there."""
    look(lane, clock, LIMIT, latest=DUE, seconds=0.004)
    assert not look(lane, clock, 0, seconds=0).is_full
    assert not look(lane, clock, 0, seconds=0).is_full
    short = lane.look_at - clock.now
    assert 0 < short <= 0.004 * (1 + DEEP_LOOK_SHARE)
    clock.now = lane.look_at
    assert look(lane, clock, 0).is_full
    look(lane, clock, 0)
    assert lane.look_at > clock.now + POLL / 2


def test_an_idle_lane_has_no_cycle_of_short_naps(lane: Lane, clock: Clock):
    look(lane, clock, LIMIT, latest=DUE, seconds=0.05)
    looks, started_at = 0, clock.now
    while clock.now < started_at + 20 * POLL:
        clock.now = max(clock.now, lane.look_at)
        look(lane, clock, seconds=0.05)
        looks += 1
    # Two for each sleep, and a few at the start.
    assert looks <= 2 * 20 + 6


class TestPassing:
    """A lane whose handler names messages to pass over."""

    @pytest.fixture
    def passed(self) -> list[str]:
        return []

    @pytest.fixture
    def lane(self, clock: Clock, passed: list[str]) -> Lane:
        def handle(envelope: Envelope) -> None: ...

        handler = handler_of("passing", handle, passes_over=lambda: passed)
        (lane,) = lanes_of(WorkerOptions(), registry_with(handler))
        return lane

    def behind(self, lane: Lane) -> tuple[int, int] | None:
        """Return behind what a look would begin now; None of one that passes over nothing."""
        statement, params = lane.claim_steps(lane.begin_look(LIMIT), "lease", "again")[-1]
        if statement != CLAIM_PASSING:
            assert statement == CLAIM
            return None
        return params["after"], params["after_id"]

    def take(self, lane: Lane, found: int, latest: int, last_id: int) -> None:
        lane.end_look(lane.begin_look(LIMIT), found, latest, None, behind=(latest, last_id))

    def test_it_begins_at_the_mark_and_goes_on_behind_what_was_taken(
        self, lane: Lane, clock: Clock, passed: list[str]
    ) -> None:
        look(lane, clock, LIMIT, latest=DUE)
        assert self.behind(lane) is None
        passed.append("https://host/")
        assert self.behind(lane) == (DUE - MARGIN_MS, 0)
        self.take(lane, LIMIT, DUE + 7000, 12)
        assert self.behind(lane) == (DUE + 7000, 12)
        passed.append("https://other/")
        assert self.behind(lane) == (DUE + 7000, 12)

    def test_what_is_not_passed_over_any_more_may_be_anywhere(
        self, lane: Lane, clock: Clock, passed: list[str]
    ) -> None:
        look(lane, clock, LIMIT, latest=DUE)
        passed += ["https://host/", "https://other/"]
        self.take(lane, LIMIT, DUE + 7000, 12)
        passed.pop()
        assert self.behind(lane) == (DUE - MARGIN_MS, 0)
        self.take(lane, LIMIT, DUE + 9000, 13)
        passed.clear()
        assert self.behind(lane) is None
        # The mark has not moved: below what was taken meanwhile there may be some.
        assert lane.begin_look(LIMIT).floor == DUE - MARGIN_MS

    def test_what_it_may_not_look_at_yet_is_for_the_next_look_at_once(
        self, lane: Lane, clock: Clock, passed: list[str]
    ) -> None:
        passed.append("https://host/")
        for n in range(3):
            edge = (DUE, 5000 * (n + 1))
            lane.end_look(lane.begin_look(LIMIT), 0, None, None, behind=edge, has_more=True)
            assert lane.look_at <= clock.now
            assert self.behind(lane) == edge
        look(lane, clock)
        look(lane, clock)
        assert lane.look_at > clock.now
        assert self.behind(lane) == (DUE, 15_000)

    def test_it_sleeps_no_longer_than_until_they_may_be_wanted(
        self, lane: Lane, clock: Clock, passed: list[str]
    ) -> None:
        passed.append("https://host/")
        assert not look(lane, clock).looks_ahead
        second = look(lane, clock)
        assert second.looks_ahead
        assert lane.look_at == second.began_at + PASSING_SECONDS
        look(lane, clock)
        second = look(lane, clock, wait_ms=300)
        assert lane.look_at == second.began_at + 0.3

    def test_a_lane_of_a_fleet_does_not_doze_meanwhile(
        self, lane: Lane, clock: Clock, passed: list[str]
    ) -> None:
        lane.is_shared = True
        passed.append("https://host/")
        look(lane, clock)
        look(lane, clock)
        assert not lane.is_dozing
