"""The oldest snapshot: while somebody holds one, deleted messages stay and claims get slower."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.observe.logs import log
from delayed_queue.observe.store import oldest_snapshot_row

# A snapshot is old after so long, or, of holders without a beginning, by so many transactions.
OLD: Final = timedelta(minutes=5)
OLD_TRANSACTIONS: Final = 100_000
# How long a claim reads at each dead row it passes, as measured on two cores.
SECONDS_A_ROW: Final = 0.3e-6

_REMEDIES: Final = {
    "session": "SELECT pg_terminate_backend({name});",
    "prepared transaction": "ROLLBACK PREPARED {name};",
    "replication slot": "SELECT pg_drop_replication_slot({name});",
    "standby": "ALTER SYSTEM SET hot_standby_feedback = off;",
}


class Snapshot(NamedTuple):
    """The oldest holder of a snapshot: a session, prepared transaction, slot or standby.

    ``age`` is that of the snapshot, which a long transaction may have taken just now; None where
    neither the server nor the samples tell. ``elsewhere`` is the database, if it is another one.
    ``dead_rows`` are those of the table of messages; of ``hidden`` sessions the role may not see
    whether they hold one.
    """

    holder: str
    name: str
    application: str
    owner: str
    state: str
    elsewhere: str
    age: timedelta | None
    transactions: int
    dead_rows: int
    hidden: int

    def is_older_than(self, limit: timedelta) -> bool:
        if self.age is None:
            return self.transactions >= OLD_TRANSACTIONS
        return self.age >= limit

    def __str__(self) -> str:
        """Return who it is, for how long: one line."""
        words = [self.application, self.owner and f"user {self.owner}", self.state]
        words.append(self.elsewhere and f"database {self.elsewhere}")
        known = ", ".join(each for each in words if each)
        since = f"{self.transactions:,} transactions"
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
    def claim_cost(self) -> str:
        """How much longer a claim from the start of a queue takes, if all dead rows are of that."""
        return f"{self.dead_rows * SECONDS_A_ROW * 1000:,.1f} ms"

    @property
    def place(self) -> str:
        """Where the remedy is run, if not here."""
        if self.holder == "prepared transaction" and self.elsewhere:
            return f"in the database {self.elsewhere}"
        return "on the standby" if self.holder == "standby" else ""


def oldest_snapshot(using: str = DEFAULT_DB_ALIAS, *, now: int | None = None) -> Snapshot | None:
    """Return who holds the oldest snapshot that keeps dead messages, if anybody does."""
    found = oldest_snapshot_row(now=now, using=using)
    if found.holder is None:
        return None
    age = None if found.seconds is None else timedelta(seconds=max(found.seconds, 0.0))
    return Snapshot(
        found.holder,
        found.name,
        found.application,
        found.owner,
        found.state,
        found.elsewhere,
        age,
        found.transactions,
        found.dead_rows,
        found.hidden,
    )


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
            log(
                logging.WARNING, "snapshot_held", holder=found, rows=found.rows,
                a_claim=found.claim_cost, ends=found.remedy,
            )  # fmt: skip
        self._told = holder
