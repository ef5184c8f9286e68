"""From the time of the input file to the time of this run, which passes faster."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from example_project.models import Order
from example_project.orders import OrderLine

MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class ShopClock:
    """``first`` of the file is ``opened_at`` here; from then on time passes ``speed`` x faster."""

    first: datetime
    opened_at: datetime
    speed: float

    def at(self, instant: datetime) -> datetime:
        """Return when an instant of the file comes, in whole milliseconds as a queue keeps it."""
        return self.opened_at + (instant - self.first) / self.speed // MILLISECOND * MILLISECOND

    def in_file(self, instant: datetime) -> datetime:
        """Return the time of the file at an instant of this run, never before the opening."""
        return self.first + max(instant - self.opened_at, timedelta(0)) * self.speed

    def order(self, line: OrderLine) -> Order:
        """Return the order as it is stored, its times those of this run."""
        return Order(
            order_id=line.order_id,
            customer=line.customer,
            amount=line.amount,
            currency=line.currency,
            created_at=self.at(line.created_at),
            close_at=self.at(line.close_at),
            pays_at=None if line.pays_at is None else self.at(line.pays_at),
        )
