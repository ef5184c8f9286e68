"""The way in: scan the file and report what is wrong with it, then store and offer its orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from example_project import shop
from example_project.demo.console import Console
from example_project.demo.exceptions import DemoError
from example_project.demo.orders.clock import ShopClock
from example_project.orders import BadLine, OrderLine, RejectsFile, read_orders

CHUNK: Final = 1000
SHOWN_REJECTS: Final = 20


@dataclass(slots=True)
class Scan:
    """What a first reading of the file found."""

    orders: int = 0
    rejects: int = 0
    rejects_path: Path | None = None
    first: datetime | None = None
    last: datetime | None = None

    def add(self, order: OrderLine) -> None:
        self.orders += 1
        self.first = min(self.first or order.created_at, order.created_at)
        self.last = max(self.last or order.close_at, order.close_at)

    @property
    def span(self) -> timedelta:
        """The time of the file from its first order to its last deadline."""
        if self.first is None or self.last is None:
            return timedelta(0)
        return self.last - self.first

    def clock(self, opened_at: datetime, speed: float) -> ShopClock:
        return ShopClock(self.first or opened_at, opened_at, speed)


def scan(path: Path, limit: int | None, rejects_path: Path, console: Console) -> Scan:
    """Read the file once; bad lines are said and written down, good ones counted."""
    found = Scan()
    try:
        with RejectsFile(rejects_path) as rejects:
            for each in _lines(path, limit):
                if isinstance(each, OrderLine):
                    found.add(each)
                    continue
                rejects.add(each)
                if rejects.count <= SHOWN_REJECTS:
                    console.warn(f"{path.name}:{each.line}: {each.reason}")
    except OSError as error:
        raise DemoError(f"{rejects_path} cannot be written: {error.strerror}.") from error
    _tell(rejects, found, console)
    return found


def _tell(rejects: RejectsFile, found: Scan, console: Console) -> None:
    found.rejects = rejects.count
    if not rejects.count:
        return
    found.rejects_path = rejects.path
    more = max(rejects.count - SHOWN_REJECTS, 0)
    console.warn((f"… and {more:,} more. " if more else "") + f"Rejected lines: {rejects.path}")


def rejects_beside(path: Path) -> Path:
    """Return where the rejects of an input go: beside it, else where anyone may write."""
    beside = path.with_name(f"{path.stem}.rejects.jsonl")
    try:
        beside.open("a").close()
    except OSError:
        return Path(mkdtemp(prefix="delayed-queue-demo-")) / beside.name
    return beside


def valid_orders(path: Path, limit: int | None) -> Iterator[OrderLine]:
    """Yield the valid orders of the file, up to the limit."""
    return (each for each in _lines(path, limit) if isinstance(each, OrderLine))


def _lines(path: Path, limit: int | None) -> Iterator[OrderLine | BadLine]:
    count = 0
    for each in read_orders(path):
        if isinstance(each, OrderLine):
            if count == limit:
                return
            count += 1
        yield each


def load(orders: Iterator[OrderLine], clock: ShopClock) -> int:
    """Store the orders and offer their messages, a thousand to a transaction; return how many."""
    offered = 0
    while chunk := list(islice(orders, CHUNK)):
        offered += shop.place([clock.order(line) for line in chunk])
    return offered
