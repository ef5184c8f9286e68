"""Numbers as schedules of an import: seconds must not be sent as if they were milliseconds."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from datetime import UTC, datetime
from typing import Any

import pytest

from delayed_queue.spark.pipeline import imports
from delayed_queue.spark.pipeline.records import Checker, Rules
from tests.spark.records import One, check_one

AT = datetime(2026, 11, 22, 1, 10, 38, tzinfo=UTC)
SECONDS, MILLISECONDS = 1795309838, 1795309838000
YEAR_1990 = 631_152_000_000


def checked(schedule_at: Any, unit: str | None = None, **more: Any) -> One:
    record = {"key": "a", "payload": "1", "schedule_at": schedule_at, **more}
    return check_one(Checker(Rules("orders", are_texts_json=True, time_unit=unit)), record)


@pytest.mark.parametrize("value", [SECONDS, str(SECONDS), 0, -1, "0", YEAR_1990 - 1], ids=repr)
def test_a_number_that_may_be_seconds_is_put_aside(value: Any) -> None:
    found = checked(value)
    assert found.schedule_ms is None
    (reason,) = found.reasons
    assert "--time-unit s, or ms" in reason


@pytest.mark.parametrize(
    ("value", "unit", "milliseconds"),
    [
        (MILLISECONDS, None, MILLISECONDS),
        (str(MILLISECONDS), None, MILLISECONDS),
        (YEAR_1990, None, YEAR_1990),
        (SECONDS, "s", MILLISECONDS),
        (str(SECONDS), "s", MILLISECONDS),
        (0, "s", 0),
        (SECONDS, "ms", SECONDS),
        (-1, "ms", -1),
        ("1969-12-31T00:00:00Z", None, -86_400_000),  # an instant in words is in no doubt
        (AT.isoformat(), "s", MILLISECONDS),
    ],
    ids=repr,
)
def test_what_numbers_count(value: Any, unit: str | None, milliseconds: int) -> None:
    found = checked(value, unit)
    assert (found.reasons, found.schedule_ms) == ((), milliseconds)


@pytest.mark.parametrize(("value", "unit"), [(MILLISECONDS, "s"), (SECONDS * 10**6, None)])
def test_a_number_of_a_smaller_unit_is_in_no_year(value: int, unit: str | None) -> None:
    assert "outside the years" in checked(value, unit).reasons[0]


def test_all_that_is_wrong_is_named() -> None:
    first, second = checked(SECONDS, delay=5).reasons
    assert "--time-unit" in first
    assert "both a schedule_at and a delay" in second


@pytest.mark.parametrize(
    ("arguments", "unit"), [([], None), (["--time-unit", "s"], "s"), (["--time-unit", "ms"], "ms")]
)
def test_the_command_has_the_option(arguments: list[str], unit: str | None) -> None:
    parser = ArgumentParser()
    imports.add_arguments(parser)
    options: Namespace = parser.parse_args(["a.csv", *arguments])
    assert options.time_unit == unit
