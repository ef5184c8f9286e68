"""A spring campaign as JSON lines, the same at every run; some records are bad.

A line is a request for a notification, as REST takes it, with an ``id``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

from example_project.samples import PEOPLE, person

COUNT: Final = 4_000
SEED: Final = 20310320
# Every 80th record is bad, every 500th comes twice.
BAD_EVERY: Final = 80
AGAIN_EVERY: Final = 500
BAD: Final[list[dict[str, Any]]] = [
    {"to": "not an address"},
    {"to": None},
    {"template": "no-such-template"},
    {"channel": "pigeon"},
    {"context": {}},
    {"priority": "now"},
]
NAMES: Final = [
    "Ada", "Aoife", "Björn", "Carmen", "Dušan", "Elif", "Emeka", "Fatima", "Giulia", "Hana",
    "Ioana", "João", "Kwame", "Linh", "Łukasz", "Mei", "Nadia", "Oskar", "Priya", "Ștefan", "Yuki",
    "Zsófia",
]  # fmt: skip


def lines(count: int = COUNT) -> Iterator[str]:
    """Yield the lines of the file."""
    # Only random() is drawn from: Python guarantees its sequence across versions.
    draw = random.Random(SEED).random  # noqa: S311 # data, not secrets
    for number in range(count):
        record = _record(number, draw(), draw())
        if number % BAD_EVERY == BAD_EVERY - 1:
            yield _spoilt(record, number // BAD_EVERY)
            continue
        yield json.dumps(record, ensure_ascii=False)
        if number % AGAIN_EVERY == 0:
            yield json.dumps(record, ensure_ascii=False)


def _record(number: int, kind: float, more: float) -> dict[str, Any]:
    name, percent = NAMES[int(more * len(NAMES))], 10 + 5 * int(4 * more)
    record: dict[str, Any] = {
        "id": f"spring-{number:05d}", "category": "offers", "priority": "bulk",
    }  # fmt: skip
    if kind < 0.25:
        return record | {
            "channel": "sms",
            "to": f"+447700900{int(more * 1000):03d}",
            "body": f"{name}, {percent} % off everything until Sunday.",
        }
    return record | {
        "channel": "email",
        "to": person(number % PEOPLE),
        "template": "offer",
        "context": {"name": name, "percent": percent},
    }


def _spoilt(record: dict[str, Any], number: int) -> str:
    """Return a line with one thing wrong; every seventh is no JSON."""
    place = number % (len(BAD) + 1)
    text = json.dumps(_as_email(record) | BAD[place] if place < len(BAD) else record)
    return text if place < len(BAD) else text[:-1]


def _as_email(record: dict[str, Any]) -> dict[str, Any]:
    kept = {name: record[name] for name in ("id", "category", "priority")}
    return kept | {
        "channel": "email", "to": "customer-0001@example.com", "template": "offer",
        "context": {"name": "Ada", "percent": 10},
    }  # fmt: skip


def as_bytes(count: int = COUNT) -> bytes:
    """Return the content of the file."""
    return "".join(f"{each}\n" for each in lines(count)).encode()
