"""The oldest snapshot: PostgreSQL keeps every row that was deleted after it, which slows claims."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from django.db import DEFAULT_DB_ALIAS
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, override

from delayed_queue.logs import log
from delayed_queue.observe.store import SnapshotRow, oldest_snapshot_row

OLD: Final = timedelta(minutes=5)
# Standbys and slots have no age: they are old after this many transactions.
OLD_TRANSACTIONS: Final = 100_000
# A claim reads this many dead rows in less time than a round trip takes.
FEW_ROWS: Final = 1_000

_HOLDERS: Final = {
    "session": gettext_lazy("session"),
    "prepared transaction": gettext_lazy("prepared transaction"),
    "replication slot": gettext_lazy("replication slot"),
    "standby": gettext_lazy("standby"),
}
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

    def described(self, age: str, transactions: str) -> str:
        """Return the holder and its age in one line, in the active language."""
        words = (
            self.application, self.owner and _("user %(name)s") % {"name": self.owner}, self.state,
            self.elsewhere and _("database %(name)s") % {"name": self.elsewhere},
        )  # fmt: skip
        known = ", ".join(filter(None, words))
        span = ngettext("%(number)s transaction", "%(number)s transactions", self.transactions)
        span %= {"number": transactions}
        return _("%(holder)s, for %(span)s") % {
            "holder": f"{_HOLDERS[self.holder]} {self.name}{f' ({known})' if known else ''}",
            "span": f"{age} ({span})" if age else span,
        }

    def __str__(self) -> str:
        """Return the holder and its age in English."""
        age = "" if self.age is None else str(timedelta(seconds=int(self.age.total_seconds())))
        with override(None):
            return self.described(age, f"{self.transactions:,}")

    @property
    def remedy(self) -> str:
        """The statement that ends it; only an operator runs it."""
        name = self.name if self.holder == "session" else "'" + self.name.replace("'", "''") + "'"
        return _REMEDIES[self.holder].format(name=name)

    @property
    def rows(self) -> str:
        """The number of dead rows, with separators."""
        return f"{self.dead_rows:,}"

    @property
    def claim_ms(self) -> int:
        """The time of a claim from the start of the queue ``scanned``; 0 for few dead rows."""
        return 0 if self.dead_rows < FEW_ROWS else round(self.scan_seconds * 1000)

    @property
    def place(self) -> str:
        """Where to run the remedy if not in this database, in the active language."""
        if self.holder == "prepared transaction" and self.elsewhere:
            return _("in the database %(name)s") % {"name": self.elsewhere}
        return _("on the standby") if self.holder == "standby" else ""


def oldest_snapshot(using: str = DEFAULT_DB_ALIAS) -> Snapshot | None:
    """Return the oldest holder of a snapshot that keeps dead messages; None without any."""
    found = oldest_snapshot_row(using)
    return None if found is None else Snapshot._make(found)


class SnapshotWatch:
    """Logs the holder of an old snapshot once, and its end once.

    Only one worker reads the catalogue, once a minute: the one whose ``is_first()`` is true.
    """

    def __init__(self, using: str, *, limit: timedelta = OLD, interval: float = 60.0) -> None:
        self._using = using
        self._limit = limit
        self._interval = interval
        self._next_at = time.monotonic() + interval
        self._logged: tuple[str, str] | None = None

    def look(self, is_first: Callable[[], bool]) -> None:
        """Check the snapshot if the interval is over."""
        if time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + self._interval
        if not is_first():
            self._logged = None
            return
        found = oldest_snapshot(self._using)
        self._log(found if found is not None and found.is_older_than(self._limit) else None)

    def _log(self, found: Snapshot | None) -> None:
        holder = None if found is None else (found.holder, found.name)
        if holder == self._logged:
            return
        if self._logged is not None:
            log(logging.INFO, "snapshot_gone", holder=" ".join(self._logged))
        if found is not None:
            cost = {"queue": found.scanned, "a_claim": f"{found.claim_ms:,} ms"}
            log(
                logging.WARNING, "snapshot_held", holder=found, rows=found.rows,
                **(cost if found.claim_ms else {}), ends=found.remedy,
            )  # fmt: skip
        self._logged = holder
