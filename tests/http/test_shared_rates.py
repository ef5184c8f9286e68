"""Rate limits that all processes share, seen from one of them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from django.db import transaction
from django.test.utils import CaptureQueriesContext

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http import rates
from delayed_queue.http.models import Rate
from delayed_queue.http.rates import SharedRate
from tests.support.processes import wait_until

NOW: Final = 1_800_000_000_000_000
ZERO: Final = timedelta(0)
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    rates.forget()
    yield
    rates.forget()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The process's own clock, which expires permits taken ahead."""
    now = [1000.0]
    monkeypatch.setattr("delayed_queue.http.rates.time.monotonic", lambda: now[0])
    return now


def took(name: str, least: int, most: int, *, at: int, rate: float = 10, burst: int = 5):
    """Run the statement itself, ``at`` microseconds after NOW."""
    interval = 1e6 / rate
    return Rate.objects.take(
        name, least, most, interval=interval, burst=round(burst * interval), now=NOW + at
    )


def test_a_rested_bucket_gives_its_burst_and_then_the_rate():
    assert took("a", 1, 5, at=0) == (5, 0)
    assert took("a", 1, 1, at=0) == (0, 100_000)
    assert took("a", 1, 1, at=99_999) == (0, 1)
    assert took("a", 1, 1, at=100_000) == (1, 0)
    assert took("a", 1, 5, at=350_000) == (2, 0)
    assert took("a", 3, 3, at=400_000) == (0, 200_000)
    assert took("a", 5, 5, at=10_000_000) == (5, 0)
    assert took("a", 1, 1, at=10_000_000) == (0, 100_000)


@pytest.mark.parametrize("back", [1, 30, 3600])
def test_a_clock_that_was_set_back_closes_the_bucket_for_a_permit_at_most(back: int):
    took("a", 5, 5, at=0)
    assert took("a", 1, 1, at=-back * 1_000_000) == (0, 100_000)
    assert took("a", 1, 5, at=100_000 - back * 1_000_000) == (1, 0)


@pytest.mark.parametrize(("rate", "burst"), [(1 / 86_400, 1), (0.1, 1), (1.0, 100)])
def test_a_raised_rate_or_a_smaller_burst_holds_at_once(rate: float, burst: int):
    took("a", burst, burst, at=0, rate=rate, burst=burst)
    assert took("a", 1, 1, at=1_000, rate=10, burst=1) == (0, 100_000)
    assert took("a", 1, 1, at=101_000, rate=10, burst=1) == (1, 0)


@pytest.mark.parametrize("rate", [0.5, 3, 7, 333.3, 5_000, 100_000])
@pytest.mark.parametrize("burst", [1, 7, 500])
def test_never_more_than_the_rate_in_any_window(rate: float, burst: int):
    """Against a model: takers without waits, at random moments, of random sizes."""
    dice = random.Random(f"{rate} {burst}")
    at, log = 0, []
    for _ in range(200):
        least = dice.randint(1, burst)
        granted, wait = took("a", least, dice.randint(least, burst), at=at, rate=rate, burst=burst)
        assert (granted >= least) != (wait > 0)
        log.append((at, granted))
        at += dice.choice([0, wait, int(dice.expovariate(rate) * 1e6)])
    for start, (began, _) in enumerate(log):
        total = 0
        for ended, granted in log[start:]:
            total += granted
            # The statement's burst is a whole number of microseconds.
            assert total <= burst + ((ended - began) + 1) * rate / 1e6 + 1e-6
    used = sum(granted for _, granted in log)
    # A taker with a smaller minimum gets the permits that are left.
    assert used >= min(burst, 1)


def test_what_was_refused_is_granted_after_the_wait_that_was_told():
    dice = random.Random(7)
    at = 0
    for _ in range(300):
        n = dice.randint(1, 5)
        granted, wait = took("a", n, n, at=at, rate=7)
        if not granted:
            at += wait
            assert took("a", n, n, at=at - 1, rate=7).granted == 0
            assert took("a", n, n, at=at, rate=7) == (n, 0)


def test_what_is_refused_costs_no_more_questions_until_then(django_assert_num_queries):
    rate = SharedRate("a", 0.1, 1)
    rate.take()
    rate.take()
    with django_assert_num_queries(0):
        assert all(rate.take() > ZERO for _ in range(100))


def test_a_high_rate_does_not_cost_a_write_a_permit():
    rate = SharedRate("a", 1000, 1000)
    from django.db import connection

    with CaptureQueriesContext(connection) as queries:
        granted = sum(rate.take() == ZERO for _ in range(500))
    assert granted == 500
    assert len(queries) == 5


def test_permits_taken_ahead_are_lost_after_a_second(clock: list[float], django_assert_num_queries):
    rate = SharedRate("a", 1000, 1000)
    rate.take()
    clock[0] += 0.999
    with django_assert_num_queries(0):
        rate.take()
    clock[0] += 0.001
    with django_assert_num_queries(1):
        rate.take()
    assert Rate.objects.get().granted == 100


def test_after_a_short_answer_it_is_asked_again_only_when_a_chunk_can_have_come(
    clock: list[float], django_assert_num_queries
):
    """Otherwise each new permit would cost every process a write."""
    interval = 1e6 / 100
    Rate.objects.take("a", 97, 97, interval=interval, burst=1_000_000)
    rate = SharedRate("a", 100, 100)
    assert [rate.take() for _ in range(3)] == [ZERO] * 3
    waits = []
    with django_assert_num_queries(0):
        while (wait := rate.take()) == ZERO:
            pass
        waits.append(wait)
    assert waits[0] <= timedelta(seconds=0.1)
    clock[0] += 0.1
    with django_assert_num_queries(1):
        rate.take()


def test_several_at_once_come_from_what_is_at_hand_and_from_the_bucket():
    rate = SharedRate("a", 0.001, 100)
    assert rate.take(60) == ZERO
    assert rate.take(40) == ZERO
    assert rate.take(1) > ZERO


def test_in_a_transaction_no_permit_is_taken_ahead():
    rate = SharedRate("a", 1000, 1000)
    with transaction.atomic():
        rate.take()
    assert Rate.objects.get().granted == 1


def test_what_is_left_takes_no_permit():
    rate = SharedRate("a", 0.001, 1)
    assert [rate.left(), rate.left(), rate.take()] == [ZERO] * 3
    assert rate.take() > ZERO
    assert rate.left() > ZERO


def test_what_a_transaction_took_comes_back_by_its_rollback_alone():
    rate = SharedRate("a", 0.001, 1)
    with transaction.atomic():
        assert rate.take() == ZERO
        assert rate.take() > ZERO
        transaction.set_rollback(True)
    assert rate.take() == ZERO


def test_who_asks_again_and_again_gets_there_at_the_rate():
    rate = SharedRate("a", 200, 20)
    granted = 0

    def fifty() -> bool:
        nonlocal granted
        granted += rate.take() == ZERO
        return granted == 50

    started_at = time.monotonic()
    wait_until(fifty)
    # The burst is free for the first of the 50; the others come 5 ms apart.
    assert time.monotonic() - started_at >= 30 / 200


@pytest.mark.parametrize(
    ("name", "per_second", "burst"),
    [
        ("", 1, 1), ("x" * 201, 1, 1), ("a\0b", 1, 1), (None, 1, 1),
        ("a", 0, 1), ("a", -1, 1), ("a", float("nan"), 1), ("a", float("inf"), 1), ("a", True, 1),
        ("a", 100_001, 1), ("a", "1", 1),
        ("a", 1, 0), ("a", 1, 1.5), ("a", 1, True), ("a", 1, 1_000_001),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(name: Any, per_second: Any, burst: Any):
    with pytest.raises(InvalidConfiguration):
        SharedRate(name, per_second, burst)


@pytest.mark.parametrize("n", [0, -1, 6, 1.0, True])
def test_more_than_the_burst_is_refused_since_it_would_never_be_granted(n: Any):
    with pytest.raises(InvalidConfiguration, match="burst of 5"):
        SharedRate("a", 1, 5).take(n)
