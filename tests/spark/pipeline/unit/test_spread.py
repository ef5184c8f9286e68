"""Due times of spread messages: without a JVM and a database."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.messages import MAX_MILLISECONDS
from delayed_queue.spark.pipeline.offers import Spread


class TestSpread:
    def test_nothing_said_is_nothing(self) -> None:
        assert Spread.of() is None

    @given(st.integers(1, 10_000), st.integers(1, 10**9))
    def test_over_a_time_all_fall_inside_it_in_order(self, total: int, over: int) -> None:
        spread = Spread(over_ms=over)
        times = [int(each * spread.step(total)) for each in range(total)]
        assert times == sorted(times)
        assert times[0] == 0
        assert times[-1] < over

    @given(st.integers(1, 3000), st.floats(0.1, 1000))
    def test_no_second_gets_more_than_the_rate(self, total: int, rate: float) -> None:
        spread = Spread.of(per_second=rate)
        assert spread is not None
        seconds: dict[int, int] = {}
        for each in range(total):
            second = int(each * spread.step(total)) // 1000
            seconds[second] = seconds.get(second, 0) + 1
        assert max(seconds.values()) <= int(rate) + 1

    @pytest.mark.parametrize("rate", [0, -1, 2_000_000, float("nan")])
    def test_rates_that_are_none(self, rate: float) -> None:
        with pytest.raises(InvalidConfiguration, match="--rate"):
            Spread.of(per_second=rate)

    def test_both(self) -> None:
        with pytest.raises(InvalidConfiguration, match="one of them"):
            Spread.of(over=timedelta(hours=1), per_second=1)

    def test_beyond_the_calendar(self) -> None:
        with pytest.raises(InvalidConfiguration, match="9999"):
            Spread(MAX_MILLISECONDS, over_ms=1000).step(10)

    def test_a_start_needs_a_zone(self) -> None:
        with pytest.raises(InvalidMessage, match="time zone"):
            Spread.of(datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused
