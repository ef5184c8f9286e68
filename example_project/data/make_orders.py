"""Make ``orders.jsonl``: half an hour of a sale, the same bytes at every run.

``python example_project/data/make_orders.py [FILE]``; the columns are those of
``docs/guides/demo.md``.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

COUNT: Final = 10_000
SEED: Final = 20251128
OPENING: Final = datetime(2025, 11, 28, 18, 0, tzinfo=UTC)
WINDOW: Final = timedelta(minutes=30)
DEFAULT_FILE: Final = Path(__file__).with_name("orders.jsonl")

FIRST_NAMES: Final = [
    "Adaeze", "Alejandro", "Amélie", "Anders", "Andreea", "Aoife", "Bogdan", "Björn", "Carmen",
    "Chiara", "Dušan", "Elif", "Emeka", "Farah", "Fatima", "François", "Giulia", "Hana",
    "Hiroshi", "Ines", "Ioana", "Jakub", "João", "Kwame", "Laila", "Lars", "Linh", "Lucía",
    "Magda", "Mateo", "Mei", "Mihai", "Nadia", "Noah", "Oluwaseun", "Oskar", "Petra", "Priya",
    "Radu", "Sanjay", "Siobhán", "Sofia", "Sven", "Tomasz", "Wei", "Yuki", "Zsófia", "Łukasz",
    "Ștefan",
]  # fmt: skip
LAST_NAMES: Final = [
    "Adeyemi", "Andersson", "Bauer", "Brown", "Chen", "Costa", "Dubois", "Dumitrescu",
    "Fernández", "Garcia", "Haddad", "Hansen", "Horváth", "Ionescu", "Jansen", "Kaya", "Khan",
    "Kowalski", "Kim", "Lindqvist", "Marković", "Mensah", "Moretti", "Murphy", "Müller", "Nguyễn",
    "Novák", "Okafor", "Patel", "Popescu", "Rossi", "Sato", "Schmidt", "Silva", "Smith", "Suzuki",
    "Tanaka", "Vasilescu", "Wang", "Weber", "Wiśniewska", "Yilmaz",
]  # fmt: skip
# The last one the simulated gateway has no account in: such orders cannot be closed.
CURRENCIES: Final = (("EUR", 0.55), ("USD", 0.70), ("GBP", 0.82), ("RON", 0.92), ("PLN", 0.998),
                     ("VES", 1.0))  # fmt: skip
# By card there are 5 minutes to pay, by wallet 10, by bank transfer 20.
DEADLINES: Final = ((300, 0.60), (600, 0.85), (1200, 1.0))

T = TypeVar("T")


def orders(count: int = COUNT) -> Iterator[dict[str, str | int | None]]:
    """Yield the orders by the time of their creation."""
    # Only random() is drawn from: Python guarantees its sequence across versions.
    draw = random.Random(SEED).random  # noqa: S311 # data, not secrets
    for number in range(count):
        created_at = OPENING + timedelta(milliseconds=int((number + draw()) * _gap_ms(count)))
        close_after = _weighted(DEADLINES, draw())
        yield {
            "order_id": f"SALE-{number + 1:05d}",
            "customer": f"{_one_of(FIRST_NAMES, draw())} {_one_of(LAST_NAMES, draw())}",
            "amount": _amount(draw()),
            "currency": _weighted(CURRENCIES, draw()),
            "created_at": created_at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "close_after": close_after,
            "pay_after": _pay_after(close_after, draw(), draw()),
        }


def _gap_ms(count: int) -> float:
    return WINDOW / timedelta(milliseconds=1) / count


def _pay_after(close_after: int, fate: float, pace: float) -> int | None:
    """65 % pay in time, most of them soon; 2 % pay too late; the others never do."""
    if fate < 0.65:
        return 10 + int(close_after * 0.9 * pace * pace)
    return int(close_after * (1.05 + pace / 2)) if fate < 0.67 else None


def _amount(chance: float) -> str:
    return f"{4 + int(396 * chance * chance * chance)}.{(99, 95, 90, 50)[int(chance * 1000) % 4]}"


def _weighted(shares: tuple[tuple[T, float], ...], chance: float) -> T:
    return next(value for value, limit in shares if chance < limit)


def _one_of(values: list[str], chance: float) -> str:
    return values[int(chance * len(values))]


def as_bytes(count: int = COUNT) -> bytes:
    """Return the content of the file."""
    lines = (json.dumps(order, ensure_ascii=False) for order in orders(count))
    return "".join(f"{line}\n" for line in lines).encode()


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FILE).write_bytes(as_bytes())
