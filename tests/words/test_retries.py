"""Retry policies, durations and backoff."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.retries import Backoff, RetryPolicy, is_transient

SECOND = timedelta(seconds=1)


def waits(policy: RetryPolicy) -> list[float]:
    found: list[float] = []
    for attempt in range(1, 10_000):
        delay = policy.delay_after(attempt)
        if delay is None:
            return found
        found.append(delay.total_seconds())
    raise AssertionError("the policy never ends")


class TestExponential:
    def test_q28_doubles_up_to_the_maximum(self):
        policy = RetryPolicy.exponential(SECOND, maximum=10 * SECOND, max_attempts=7, jitter=0)
        assert waits(policy) == [1, 2, 4, 8, 10, 10]

    def test_q28_the_default_tries_ten_times_within_some_hours(self):
        found = waits(RetryPolicy.exponential(jitter=0))
        assert found == [5, 10, 20, 40, 80, 160, 320, 640, 1280]

    def test_the_longest_policy_does_not_overflow(self):
        policy = RetryPolicy.exponential(
            SECOND, factor=1000, maximum=timedelta(days=3650), max_attempts=1000, jitter=0
        )
        found = waits(policy)
        assert len(found) == 999
        assert found[-1] == timedelta(days=3650).total_seconds()

    @given(jitter=st.floats(0, 1), attempt=st.integers(1, 9))
    def test_q28_jitter_stays_within_its_share(self, jitter: float, attempt: int):
        exact = RetryPolicy.exponential(jitter=0).delay_after(attempt)
        found = RetryPolicy.exponential(jitter=jitter).delay_after(attempt)
        assert exact is not None
        assert found is not None
        spread = exact * jitter + timedelta(microseconds=1)
        assert exact - spread <= found <= exact + spread

    def test_q28_jitter_spreads(self):
        policy = RetryPolicy.exponential(jitter=0.5)
        found = {policy.delay_after(3) for _ in range(50)}
        assert len(found) > 40

    @pytest.mark.parametrize(
        "wrong",
        [
            {"initial": -SECOND},
            {"initial": "5 s"},
            {"maximum": timedelta(days=3651)},
            {"factor": 0.5},
            {"factor": math.nan},
            {"factor": "2"},
            {"max_attempts": 0},
            {"max_attempts": 1001},
            {"max_attempts": 2.0},
            {"max_attempts": True},
            {"jitter": -0.1},
            {"jitter": 1.1},
            {"jitter": math.nan},
            {"jitter": "0.2"},
        ],
    )
    def test_wrong_values(self, wrong: dict[str, Any]):
        with pytest.raises(InvalidConfiguration):
            RetryPolicy.exponential(**wrong)


class TestLadder:
    def test_q28_each_step_once(self):
        policy = RetryPolicy.ladder("15s 3m 10m")
        assert waits(policy) == [15, 180, 600]
        assert policy.max_attempts == 4
        assert RetryPolicy.ladder([15 * SECOND, 180 * SECOND, 600 * SECOND]) == policy

    @pytest.mark.parametrize("steps", ["", "  ", [], "15x", "15s, 3m", "s", [-15]])
    def test_wrong_steps(self, steps: Any):
        with pytest.raises(InvalidConfiguration):
            RetryPolicy.ladder(steps)


def test_q28_never_makes_the_first_failure_final():
    assert waits(RetryPolicy.never()) == []


def test_more_than_one_attempt_needs_a_delay():
    with pytest.raises(InvalidConfiguration, match="delay"):
        RetryPolicy((), 2)


def test_the_last_delay_repeats_and_attempts_count_from_one():
    policy = RetryPolicy((SECOND, 2 * SECOND), 5)
    assert waits(policy) == [1, 2, 2, 2]
    assert policy.delay_after(0) == SECOND


class TestBackoff:
    def test_q33_the_default_waits(self):
        assert Backoff().waits() == [0.1, 0.2, 0.4, 0.8, 1.6]

    def test_q33_capped_and_within_the_deadline(self):
        assert Backoff(retries=4, maximum=SECOND / 4).waits() == [0.1, 0.2, 0.25, 0.25]
        assert Backoff(deadline=SECOND).waits() == [0.1, 0.2, 0.4]

    @given(
        retries=st.integers(0, 100),
        initial=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
        maximum=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
        deadline=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
    )
    def test_q33_bounded_in_all(self, retries, initial, maximum, deadline):
        found = Backoff(retries, initial, maximum, deadline).waits()
        assert len(found) <= retries
        assert sum(found) <= deadline.total_seconds() + 1e-6
        assert all(wait <= maximum.total_seconds() for wait in found)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"retries": -1},
            {"retries": 101},
            {"retries": 1.0},
            {"initial": timedelta(0)},
            {"maximum": "10 s"},
            {"deadline": -SECOND},
        ],
    )
    def test_q33_wrong_values(self, wrong: dict[str, Any]):
        with pytest.raises(InvalidConfiguration, match=next(iter(wrong))):
            Backoff(**wrong)


@pytest.mark.parametrize(
    "sqlstate",
    [
        "40001",
        "40P01",
        "08000",
        "08006",
        "57P01",
        "57P02",
        "57P03",
        "25006",
        "25P03",
        "53100",
        "53200",
        "53300",
    ],
)
def test_q33_transient(sqlstate: str):
    assert is_transient(sqlstate)


@pytest.mark.parametrize(
    "sqlstate", [None, "", "23505", "40002", "25001", "25P02", "53400", "57014", "42601", "22021"]
)
def test_q34_not_transient(sqlstate: str | None):
    assert not is_transient(sqlstate)
