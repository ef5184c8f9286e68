"""Vouchers that expire as Parquet, the same at every run; some records are bad."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

COUNT: Final = 2_000
SEED: Final = 20310401
# Every 200th voucher has no number, every 125th is of a closed shop.
BAD_EVERY: Final = 200
GONE_EVERY: Final = 125
GONE: Final = "closed-shop"
SHOPS: Final = ("cluj", "lisbon", "osaka", "zurich")


def rows(count: int = COUNT) -> Iterator[dict[str, Any]]:
    """Yield the records."""
    # Only random() is drawn from: Python guarantees its sequence across versions.
    draw = random.Random(SEED).random  # noqa: S311 # data, not secrets
    for number in range(count):
        is_bad = number % BAD_EVERY == BAD_EVERY - 1
        is_gone = number % GONE_EVERY == GONE_EVERY - 1
        yield {
            "number": None if is_bad else f"voucher-{number:05d}",
            "shop": GONE if is_gone else SHOPS[int(draw() * len(SHOPS))],
            "cents": 500 + 100 * int(draw() * 95),
        }


def write(path: Path, count: int = COUNT) -> None:
    """Write the records as Parquet."""
    # Here: only the pipeline needs it.
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows(count))), path)
