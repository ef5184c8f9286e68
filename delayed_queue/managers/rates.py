"""The statement that takes permits from a shared bucket."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import fetch

M = TypeVar("M", bound=models.Model)


class PermitsRow(NamedTuple):
    """How many permits were taken and, where none, the microseconds until there may be some."""

    granted: int
    wait: int


class RateManager(models.Manager[M]):
    """The statement of the buckets, in the manner of MessageManager."""

    def take(
        self,
        name: str,
        least: int,
        most: int,
        *,
        interval: float,
        burst: int,
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> PermitsRow:
        """Take from ``least`` to ``most`` permits, or none; all times are in microseconds.

        A permit books ``interval``; ``burst`` is how much may be booked ahead. In a transaction
        the bucket stays locked until its end, and a rollback puts the permits back.
        """
        params = {
            "name": name, "least": least, "most": most, "interval": interval, "burst": burst,
            "now": now,
        }  # fmt: skip
        rows = fetch(using, sql.TAKE_PERMITS, params)
        if rows and (rows[0][0] or rows[0][1] > 0):
            return PermitsRow._make(rows[0])
        # Somebody emptied the bucket, or made it, after the statement began, which did not see it.
        return PermitsRow(0, max(round(least * interval), 1))
