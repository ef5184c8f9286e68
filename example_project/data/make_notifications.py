"""Make ``notifications.jsonl``: 10,000 requests of a shop and a bank, the same at every run.

``python example_project/data/make_notifications.py [FILE]``; ``example_project/samples.py``
describes a line.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

COUNT: Final = 10_000
SEED: Final = 20310501
SECONDS: Final = 60
DEFAULT_FILE: Final = Path(__file__).with_name("notifications.jsonl")

NAMES: Final = [
    "Ada", "Aoife", "Björn", "Carmen", "Dušan", "Elif", "Emeka", "Fatima", "Giulia", "Hana",
    "Ioana", "João", "Kwame", "Linh", "Łukasz", "Mei", "Nadia", "Oskar", "Priya", "Ștefan", "Yuki",
    "Zsófia",
]  # fmt: skip
CITIES: Final = ["Bucharest", "Cluj", "Iași", "Lisbon", "Łódź", "Osaka", "São Paulo", "Zürich"]
# The kinds, each with the upper end of its share of the requests.
KINDS: Final = (
    ("code", 0.12), ("order", 0.34), ("shipped", 0.46), ("reminder", 0.52), ("event", 0.60),
    ("letter", 0.64), ("offer", 0.93), ("wrong", 0.985), ("again", 1.0),
)  # fmt: skip
# People who have opted out of offers; `setupnotifications` suppresses them.
OPTED_OUT: Final = 40
PEOPLE: Final = 3000

T = TypeVar("T")
Draw = Callable[[], float]


def lines(count: int = COUNT) -> Iterator[dict[str, Any]]:
    """Yield the lines: seconds after the start, way of intake, kind, and the request."""
    # Only random() is drawn from: Python guarantees its sequence across versions.
    draw = random.Random(SEED).random  # noqa: S311 # data, not secrets
    keyed: list[dict[str, Any]] = []
    for number in range(count):
        kind = _weighted(KINDS, draw())
        after = round(SECONDS * (number + draw()) / count, 3)
        via = "broker" if draw() < 0.3 else "rest"
        if kind == "again" and not keyed:
            kind = "order"
        line: dict[str, Any] = {"after": after, "via": via, "kind": kind}
        if kind == "wrong":
            line |= _wrong(number, draw)
        elif kind == "again":
            line["request"] = keyed[int(draw() * len(keyed))]
        else:
            line["request"] = MAKERS[kind](number, draw)
            if "dedupeKey" in line["request"]:
                keyed.append(line["request"])
        yield line


def _code(number: int, draw: Draw) -> dict[str, Any]:
    """A one-time code: urgent, and worthless after a while."""
    is_sms = draw() < 0.8
    return {
        "channel": "sms" if is_sms else "email",
        "to": phone(draw) if is_sms else address(draw),
        "template": "code",
        "context": {"code": f"{int(draw() * 1_000_000):06d}", "minutes": 2},
        "category": "security",
        "priority": "urgent",
        "expiresAt": _weighted((("+2s", 0.05), ("+30s", 0.5), ("+120s", 1.0)), draw()),
    }


def _order(number: int, draw: Draw) -> dict[str, Any]:
    goods = ["mug", "lamp", "chair", "book"]
    context = {
        "name": _one_of(NAMES, draw()),
        "order": f"SALE-{number + 1:05d}",
        "lines": [
            {
                "what": _one_of(goods, draw()),
                "count": 1 + int(3 * draw()),
            }
            for _ in range(1 + int(3 * draw()))
        ],
        "total": f"{5 + int(395 * draw())}.90 EUR",
    }
    return {
        "channel": "email",
        "to": address(draw),
        "template": "order",
        "context": context,
        "dedupeKey": f"order-{number + 1:05d}",
    }


def _shipped(number: int, draw: Draw) -> dict[str, Any]:
    return {
        "channel": "sms",
        "to": phone(draw),
        "template": "shipped",
        "context": {"order": f"SALE-{number + 1:05d}", "city": _one_of(CITIES, draw())},
        "dedupeKey": f"shipped-{number + 1:05d}",
    }


def _reminder(number: int, draw: Draw) -> dict[str, Any]:
    """For later: five to forty seconds after its arrival."""
    return {
        "channel": "email",
        "to": address(draw),
        "template": "reminder",
        "context": {"name": _one_of(NAMES, draw()), "day": _one_of(["Monday", "Friday"], draw())},
        "category": "reminders",
        "sendAt": f"+{5 + int(35 * draw())}s",
    }


def _event(number: int, draw: Draw) -> dict[str, Any]:
    """A webhook to a partner's system."""
    return {
        "channel": "webhook",
        "to": f"{{webhooks}}/partners/{1 + int(20 * draw())}",
        "template": "event",
        "context": {"event": _one_of(["paid", "shipped", "returned"], draw()),
                    "order": f"SALE-{number + 1:05d}"},
        "dedupeKey": f"event-{number + 1:05d}",
    }  # fmt: skip


def _letter(number: int, draw: Draw) -> dict[str, Any]:
    """A mail with its text in the request, without a template."""
    name = _one_of(NAMES, draw())
    return {
        "channel": "email",
        "to": address(draw),
        "subject": f"Your statement of {_one_of(['March', 'April'], draw())}",
        "body": f"Dear {name},\n\nyour statement is ready.\n\nYours, the bank",
        "html": f"<p>Dear {name},</p><p>your statement is ready.</p>",
        "category": "statements",
    }


def _offer(number: int, draw: Draw) -> dict[str, Any]:
    """A campaign: thousands at once, none of them urgent."""
    return {
        "channel": "email",
        "to": address(draw),
        "template": "offer",
        "context": {"name": _one_of(NAMES, draw()), "percent": 10 + 5 * int(4 * draw())},
        "category": "offers",
        "priority": "bulk",
        "dedupeKey": f"spring-{int(draw() * 4000):04d}",
    }


MAKERS: Final[dict[str, Callable[[int, Draw], dict[str, Any]]]] = {
    "code": _code, "order": _order, "shipped": _shipped, "reminder": _reminder, "event": _event,
    "letter": _letter, "offer": _offer,
}  # fmt: skip

# Mistakes of upstream services: changes to a good request; None removes a field.
WRONGS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("letter", {"to": "not an address"}),
    ("letter", {"to": None}),
    ("letter", {"to": "ada@example.org\r\nBcc: everybody@example.org"}),
    ("letter", {"subject": "Hello\nBcc: everybody@example.org"}),
    ("letter", {"subject": "x" * 300}),
    ("letter", {"body": ""}),
    ("letter", {"body": "a\x00b"}),
    ("letter", {"channel": "pigeon"}),
    ("letter", {"channel": None}),
    ("letter", {"colour": "red"}),
    ("letter", {"priority": "now!"}),
    ("letter", {"sendAt": "tomorrow"}),
    ("letter", {"expiresAt": "2001-01-01T00:00:00Z"}),
    ("letter", {"sendAt": "+60s", "expiresAt": "+30s"}),
    ("letter", {"callbackUrl": "http://169.254.169.254/latest/meta-data"}),
    ("order", {"template": "ordre"}),
    ("order", {"templateVersion": 99}),
    ("order", {"context": {"name": "Ada"}}),
    ("order", {"context": ["Ada"]}),
    ("order", {"subject": "A subject of its own"}),
    ("shipped", {"to": "0721234567"}),
    ("shipped", {"to": "+999123456789"}),
    ("shipped", {"to": "+40 721 234 567"}),
    ("event", {"to": "ftp://partner.example.org/"}),
    ("event", {"to": "http://localhost/admin"}),
    ("event", {"to": "https://user:secret@partner.example.org/"}),
]
# Bodies that are not JSON objects.
TEXTS: Final = [
    "", "{", "null", "[]", '"text"', '{"channel": "email",}', '{"channel": NaN}',
    '{"channel": "sms", "channel": "email"}', "<notification/>",
]  # fmt: skip


def _wrong(number: int, draw: Draw) -> dict[str, Any]:
    """Return a request with one mistake, or a text that is not a request."""
    if draw() < 0.15:
        return {"text": _one_of(TEXTS, draw())}
    kind, changes = _one_of(WRONGS, draw())
    request = MAKERS[kind](number, draw) | changes
    return {"request": {name: value for name, value in request.items() if value is not None}}


def address(draw: Draw) -> str:
    """Return an address; the mail server of the demo refuses one in a hundred."""
    chance = draw()
    if chance < 0.01:
        return f"nobody-{int(draw() * 100):02d}@example.org"
    return person(int(draw() * PEOPLE))


def person(number: int) -> str:
    return f"customer-{number:04d}@example.{('org', 'com', 'net')[number % 3]}"


def phone(draw: Draw) -> str:
    """Return a number that Ofcom reserves for fiction."""
    return f"+447700900{int(draw() * 1000):03d}"


def opted_out() -> list[str]:
    """Return the addresses of people who want no offers."""
    return [person(each * 71 % PEOPLE) for each in range(OPTED_OUT)]


def _weighted(shares: tuple[tuple[T, float], ...], chance: float) -> T:
    return next(value for value, limit in shares if chance < limit)


def _one_of(values: list[T], chance: float) -> T:
    return values[int(chance * len(values))]


def as_bytes(count: int = COUNT) -> bytes:
    """Return the content of the file."""
    texts = (json.dumps(line, ensure_ascii=False) for line in lines(count))
    return "".join(f"{text}\n" for text in texts).encode()


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FILE).write_bytes(as_bytes())
