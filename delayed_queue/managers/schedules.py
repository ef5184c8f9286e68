"""The statements of the cron service, and the rows they return."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import execute, fetch

M = TypeVar("M", bound=models.Model)


class ScheduleRow(NamedTuple):
    """A schedule: how it is defined, and how far its ticks were written ahead."""

    kind: str
    key_prefix: str
    queue: str
    codec: str
    type: str
    expression: str
    timezone: str
    gap: str
    fold: str
    missed: str
    missed_cap: int
    payload: str | None
    declared_in: str
    is_enabled: bool
    config_hash: str
    retired_hashes: str
    last_tick: int | None
    installed_at: int | None
    interval: int | None


class TickRow(NamedTuple):
    """A tick in the queue, and whether somebody is handling it under a lease."""

    id: int
    key: str
    is_leased: bool


class ScheduleManager(models.Manager[M]):
    """The statements of the cron service, in the manner of MessageManager."""

    def lock(
        self,
        kind: str,
        key_prefix: str,
        *,
        queue: str,
        codec: str,
        using: str = DEFAULT_DB_ALIAS,
    ) -> ScheduleRow:
        """Return the prefix's row, made if need be, locked to the end of the transaction."""
        params = {"kind": kind, "key_prefix": key_prefix, "queue": queue, "codec": codec}
        return ScheduleRow._make(fetch(using, sql.LOCK_SCHEDULE, params)[0])

    def read(
        self,
        kind: str,
        key_prefix: str,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[int, ScheduleRow | None]:
        """Return the clock and the prefix's row, if there is one."""
        params = {"kind": kind, "key_prefix": key_prefix, "now": now}
        clock, *row = fetch(using, sql.READ_SCHEDULE, params)[0]
        return clock, None if row[0] is None else ScheduleRow._make(row)

    def described(
        self, *, now: int | None = None, using: str = DEFAULT_DB_ALIAS
    ) -> list[tuple[int, ScheduleRow]]:
        """Return all schedules of operators and code, each with the clock."""
        rows = fetch(using, sql.DESCRIBED_SCHEDULES, {"now": now})
        return [(clock, ScheduleRow._make(row)) for clock, *row in rows]

    def pending_ticks(
        self,
        kind: str,
        key_prefix: str,
        *,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> tuple[int, list[TickRow]]:
        """Return the clock and the prefix's ticks, locked, but for those being consumed."""
        params = {"kind": kind, "key_prefix": key_prefix, "now": now}
        rows = fetch(using, sql.PENDING_TICKS, params)
        ticks = [TickRow._make(row) for _, *row in rows if row[0] is not None]
        return rows[0][0], ticks

    def drop_ticks(self, ids: Sequence[int], *, using: str = DEFAULT_DB_ALIAS) -> int:
        """Delete those ticks, which the transaction must have locked; return how many."""
        return execute(using, sql.DROP_TICKS, {"ids": list(ids)})

    def save(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Write the state of a schedule whose row the transaction has locked."""
        execute(using, sql.SAVE_SCHEDULE, row._asdict())

    def describe(self, row: ScheduleRow, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Write the definition of a schedule that code declares; its row must exist."""
        execute(using, sql.DESCRIBE_SCHEDULE, row._asdict())
