"""Records of an import, and the messages made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from delayed_queue.spark.pipeline.records import Checker


@dataclass(frozen=True)
class One:
    """The message of a record, or its errors."""

    kind: str | None
    key: str | None
    payload: bytes | None
    schedule_at: int | None
    delay: int | None
    headers: str | None
    group: str | None
    reasons: Sequence[str]


def check_one(checker: Checker, record: dict[str, Any]) -> One:
    """Return the message of a record as in JSON lines and CSV."""
    return checked_rows(checker, [record], 1)[0]


def checked_rows(checker: Checker, records: Any, rows: int) -> list[One]:
    """Return each record as a message, or without values if it has errors."""
    offers, reasons = checker.check(records)
    names = ("kind", "key", "payload", "schedule_at", "delay", "headers", "group")
    values = offers.select(names).to_pylist()
    nothing = dict.fromkeys(names)
    return [
        One(**(nothing if row in reasons else values[row]), reasons=reasons.get(row, ()))
        for row in range(rows)
    ]
