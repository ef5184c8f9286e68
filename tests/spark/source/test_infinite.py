"""Schedules and delays without an end, without a JVM."""

from __future__ import annotations

from typing import Any

import pytest

from delayed_queue.spark.pipeline.records import Checker, Rules
from tests.spark.records import check_one

pytestmark = pytest.mark.usefixtures("queue")


@pytest.mark.parametrize(
    "when",
    [
        {"schedule_at": "infinity"},
        {"schedule_at": float("inf")},
        {"delay": "inf"},
        {"delay": float("-inf")},
        {"delay": "nan"},
    ],
)
def test_no_record_is_due_never(when: dict[str, Any]):
    found = check_one(Checker(Rules("orders")), {"key": "a", "payload": 1, **when})
    assert len(found.reasons) == 1
    assert next(iter(when)) in found.reasons[0]
