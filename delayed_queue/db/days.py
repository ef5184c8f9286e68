"""Tables that are partitioned by the day: days are made ahead, and dropped when they are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, LiteralString

from django.db import DEFAULT_DB_ALIAS, Error, transaction

from delayed_queue.db.sql import DAYS, TAKE_KEEPING, column_of
from delayed_queue.db.statements import execute, fetch
from delayed_queue.messages import MILLISECOND, to_milliseconds

DAY_MS: Final = 86_400_000
DAYS_SECONDS: Final = 3600.0
# For how many days ahead partitions are made: workers that stand still for so long need not be.
DAYS_AHEAD: Final = 7
# Of what no day has, so many rows are deleted at a time.
_PRUNED: Final = 1000

# Who reads or writes locks the whole table first and chooses among its partitions then: so nobody
# looks for a row in the rest that was moved meanwhile, writes one there that has a day by now, or
# holds a lock that is waited for here. Only when there is something to change, once a day.
_LOCK: Final = "LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE"
# A table for a day, with its rows of the rest, as a partition of the same owner.
_MAKE: Final = (
    "CREATE TABLE {table}_{day} (LIKE {table} INCLUDING ALL)",
    """
WITH gone AS (
    DELETE FROM {table}_rest
    WHERE {column} >= '{first}' AND {column} < '{last}'
    RETURNING *
)
INSERT INTO {table}_{day} SELECT * FROM gone
""",
    # Else migrations of the owner could not alter the days that a member of its role has made.
    """
DO $$ BEGIN
    EXECUTE 'ALTER TABLE {table}_{day} OWNER TO ' || (
        SELECT relowner::regrole FROM pg_class WHERE oid = '{table}'::regclass
    );
END $$
""",
    "ALTER TABLE {table} ATTACH PARTITION {table}_{day} FOR VALUES FROM ('{first}') TO ('{last}')",
)
_DROP: Final = "DROP TABLE {table}_{day}"


@dataclass(frozen=True, slots=True)
class DailyTable:
    """A table partitioned by the range of a column, with a partition ``…_rest`` for all others.

    ``first_of`` returns the least value of a day, counted from 1970-01-01 in UTC; ``prune`` deletes
    from the rest, at most ``limit`` rows that are older than ``age`` milliseconds.
    """

    name: str
    column: str
    first_of: Callable[[int], Any]
    prune: LiteralString

    def keep(
        self, kept: timedelta, *, now: datetime | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> bool:
        """Make the partitions of the coming days, and drop those of days that are over.

        Days are days of the database's clock. Return False while another worker does this. When
        the role may not create tables, prune the rest, then raise the error.
        """
        now_ms = None if now is None else to_milliseconds(now)
        try:
            if not self._keep_partitions(kept, now_ms, using):
                return False
        except Error:
            self._prune_rest(kept, now_ms, using)
            raise
        self._prune_rest(kept, now_ms, using)
        return True

    def _keep_partitions(self, kept: timedelta, now: int | None, using: str) -> bool:
        with transaction.atomic(using=using):
            params = {"table": self.name, "now": now}
            is_keeper, moment, _ = fetch(using, TAKE_KEEPING, params)[0]
            if not is_keeper:
                return False
            today = moment // DAY_MS
            oldest = today - -(-kept // timedelta(days=1))
            days = set(column_of(fetch(using, DAYS, {"table": self.name})))
            missing = [
                each for each in range(today - 1, today + DAYS_AHEAD) if _name_of(each) not in days
            ]
            over = [each for each in days if each < _name_of(oldest)]
            if missing or over:
                execute(using, _LOCK.format(table=self.name), {})
            for each in missing:
                self._make(each, using)
            for each in over:
                execute(using, _DROP.format(table=self.name, day=each), {})
        return True

    def _make(self, day: int, using: str) -> None:
        names = {
            "table": self.name, "column": self.column, "day": _name_of(day),
            "first": self.first_of(day), "last": self.first_of(day + 1),
        }  # fmt: skip
        for each in _MAKE:
            execute(using, each.format(**names), {})

    def _prune_rest(self, kept: timedelta, now: int | None, using: str) -> None:
        params = {"age": kept // MILLISECOND, "limit": _PRUNED, "now": now}
        while execute(using, self.prune, params) == _PRUNED:
            pass


def _name_of(day: int) -> int:
    """Return a day since 1970 as 20260131."""
    return int((datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).strftime("%Y%m%d"))
