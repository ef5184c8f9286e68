"""The sales report of every shop hour: a schedule that is edited on the way, and its ticks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from django.db.models import QuerySet

from delayed_queue.models import Schedule
from delayed_queue.schedules import PeriodicSchedule
from example_project.demo.database import database_now
from example_project.models import SalesReport
from example_project.shop import sales_queue

PREFIX: Final = "hourly"
BEFORE: Final = timedelta(seconds=5)
AFTER: Final = timedelta(seconds=3)
# An installation reads its clock before it commits, and takes away what is due but not yet taken.
MARGIN: Final = timedelta(seconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Span:
    """Between which instants, on the database's clock, a configuration was seen installed."""

    period: timedelta
    first: datetime | None = None
    last: datetime | None = None

    @property
    def config_hash(self) -> str:
        return PeriodicSchedule(self.period).config_hash

    def planned(self) -> set[datetime]:
        """Return the multiples of the period that lie within."""
        if self.first is None or self.last is None:
            return set()
        count, until = (self.first - _EPOCH) // self.period + 1, (self.last - _EPOCH) // self.period
        return {_EPOCH + number * self.period for number in range(count, until + 1)}


@dataclass(slots=True)
class SalesSchedule:
    """The schedule as an operator has it: a row, which the workers see and keep installed."""

    before: Span = field(default_factory=lambda: Span(BEFORE))
    after: Span = field(default_factory=lambda: Span(AFTER))
    edited_at: datetime | None = None

    def create(self) -> None:
        Schedule.objects.create(
            kind=sales_queue.kind, key_prefix=PREFIX, queue=sales_queue.name, type="periodic",
            expression=_text(BEFORE), payload={},
        )  # fmt: skip

    def look(self, *, edit: bool) -> bool:
        """Note what is installed; edit if it is time and no tick waits, and tell if so."""
        began = database_now()
        stats = sales_queue.stats()
        is_idle = not stats.due and not stats.leased
        found = _rows().values_list("config_hash", flat=True).first()
        if found == self.before.config_hash:
            self.before.first = self.before.first or database_now()
            self.before.last = began - MARGIN
            if edit and is_idle and self.edited_at is None:
                self._edit()
                return True
        elif found == self.after.config_hash:
            self.after.first = self.after.first or database_now()
            if is_idle:
                self.after.last = began
        return False

    def _edit(self) -> None:
        # As the admin saves its form.
        schedule = _rows().get()
        schedule.expression = _text(AFTER)
        schedule.save()
        self.edited_at = database_now()

    @property
    def is_done(self) -> bool:
        """Whether a tick of the edited schedule has come and nothing waits."""
        return bool(self.after.planned())


@dataclass(frozen=True, slots=True)
class Ticks:
    """The ticks that ran, against those that are planned by the clock alone."""

    before: int
    after: int
    lost: list[str]
    twice: list[str]
    outdated: list[str]


def compare_ticks(schedule: SalesSchedule) -> Ticks:
    """Look up each planned tick in the records of the handler."""
    old, new = schedule.before, schedule.after
    rows = list(SalesReport.objects.order_by("planned_at"))
    ran = Counter(row.planned_at for row in rows)
    by_old = {row.planned_at for row in rows if _hash(row) == old.config_hash}
    by_new = {row.planned_at for row in rows if _hash(row) == new.config_hash}
    lost = (old.planned() - by_old) | (new.planned() - by_new)
    outdated = {at for at in by_old if new.first is not None and at > new.first}
    twice = {at for at, times in ran.items() if times > 1}
    return Ticks(len(by_old), len(by_new), _shown(lost), _shown(twice), _shown(outdated))


def _hash(row: SalesReport) -> str:
    return row.key.split("/")[1]


def _rows() -> QuerySet[Schedule]:
    return Schedule.objects.filter(kind=sales_queue.kind, key_prefix=PREFIX)


def _text(period: timedelta) -> str:
    return f"{period.seconds}s"


def _shown(instants: set[datetime]) -> list[str]:
    return [f"{at:%H:%M:%S}" for at in sorted(instants)]
