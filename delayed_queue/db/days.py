"""Tables with a partition for each day, created in advance and dropped when it is over."""

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
# Days for which partitions exist in advance, so that workers may be down for a week.
DAYS_AHEAD: Final = 7
# Rows of the partition "_rest" that are deleted at a time.
_PRUNED: Final = 1000

# Readers and writers lock the whole table before they choose a partition, so none of them misses a
# row that moves here. Taken only when there is something to change, once a day.
_LOCK: Final = "LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE"
# Creates a table for a day, moves its rows there from "_rest", and attaches it.
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
    # Otherwise the owner's migrations could not alter partitions that a member of its role created.
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
        """Create partitions of coming days and drop those older than ``kept``; prune the rest.

        Days are of the database's clock. Returns False while another worker does this. Raises an
        error, after pruning, when the role may not create tables.
        """
        now_ms = None if now is None else to_milliseconds(now)
        try:
            is_keeper = self._keep_partitions(kept, now_ms, using)
        except Error:
            self._prune_rest(kept, now_ms, using)
            raise
        if is_keeper:
            self._prune_rest(kept, now_ms, using)
        return is_keeper

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
