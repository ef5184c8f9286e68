"""The oldest snapshot: while somebody holds one, deleted messages stay and claims get slower."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.logs import log
from delayed_queue.observe.store import SnapshotRow, oldest_snapshot_row

# A snapshot is old after so long, or, of holders without a beginning, by so many transactions.
OLD: Final = timedelta(minutes=5)
OLD_TRANSACTIONS: Final = 100_000
# A claim passes so many in less time than a round trip takes.
FEW_ROWS: Final = 1_000

_REMEDIES: Final = {
    "session": "SELECT pg_terminate_backend({name});",
    "prepared transaction": "ROLLBACK PREPARED {name};",
    "replication slot": "SELECT pg_drop_replication_slot({name});",
    "standby": "ALTER SYSTEM SET hot_standby_feedback = off;",
}


class Snapshot(SnapshotRow):
    """The oldest holder of a snapshot: a session, prepared transaction, slot or standby."""

    __slots__ = ()

    @property
    def age(self) -> timedelta | None:
        return None if self.seconds is None else timedelta(seconds=max(self.seconds, 0.0))

    def is_older_than(self, limit: timedelta) -> bool:
        if self.age is None:
            return self.transactions >= OLD_TRANSACTIONS
        return self.age >= limit

    def __str__(self) -> str:
        """Return who it is, for how long: one line."""
        words = [self.application, self.owner and f"user {self.owner}", self.state]
        words.append(self.elsewhere and f"database {self.elsewhere}")
        known = ", ".join(each for each in words if each)
        since = f"{self.transactions:,} transaction{'s' * (self.transactions != 1)}"
        if self.age is not None:
            since = f"{timedelta(seconds=int(self.age.total_seconds()))} ({since})"
        return f"{self.holder} {self.name}{f' ({known})' if known else ''}, for {since}"

    @property
    def remedy(self) -> str:
        """What would end it; nothing of ours ever runs it."""
        name = self.name if self.holder == "session" else "'" + self.name.replace("'", "''") + "'"
        return _REMEDIES[self.holder].format(name=name)

    @property
    def rows(self) -> str:
        """The number of dead rows, as it is read."""
        return f"{self.dead_rows:,}"

    @property
    def claim_ms(self) -> int:
        """How long a claim from the start of the queue ``scanned`` takes; 0 of few dead rows."""
        return 0 if self.dead_rows < FEW_ROWS else round(self.scan_seconds * 1000)

    @property
    def place(self) -> str:
        """Where the remedy is run, if not here."""
        if self.holder == "prepared transaction" and self.elsewhere:
            return f"in the database {self.elsewhere}"
        return "on the standby" if self.holder == "standby" else ""


def oldest_snapshot(using: str = DEFAULT_DB_ALIAS, *, now: int | None = None) -> Snapshot | None:
    """Return who holds the oldest snapshot that keeps dead messages, if anybody does."""
    found = oldest_snapshot_row(now=now, using=using)
    return Snapshot._make(found) if found.holder else None


class SnapshotWatch:
    """Logs who holds an old snapshot: once when it is found, and once when it is gone.

    For one worker of all: ``is_first`` is asked each time whether it is this one, so that the
    catalogue is read once a minute however many there are.
    """

    def __init__(self, using: str, *, limit: timedelta = OLD, interval: float = 60.0) -> None:
        self._using = using
        self._limit = limit
        self._interval = interval
        self._next_at = time.monotonic() + interval
        self._told: tuple[str, str] | None = None

    def look(self, is_first: Callable[[], bool]) -> None:
        """Look if it is time to; what is found is logged."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + self._interval
        if not is_first():
            self._told = None
            return
        found = oldest_snapshot(self._using)
        self._tell(found if found is not None and found.is_older_than(self._limit) else None)

    def _tell(self, found: Snapshot | None) -> None:
        holder = None if found is None else (found.holder, found.name)
        if holder == self._told:
            return
        if self._told is not None:
            log(logging.INFO, "snapshot_gone", holder=" ".join(self._told))
        if found is not None:
            cost = {"queue": found.scanned, "a_claim": f"{found.claim_ms:,} ms"}
            log(
                logging.WARNING, "snapshot_held", holder=found, rows=found.rows,
                **(cost if found.claim_ms else {}), ends=found.remedy,
            )  # fmt: skip
        self._told = holder
