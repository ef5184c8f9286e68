"""What jobs have offered: counts that stay exact through retries, crashes and twins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delayed_queue.db.rows import value_of
from delayed_queue.spark.database import Session, connect
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.offering import (
    CLOSE_JOB,
    COUNT_JOB,
    IS_CLOSED,
    PRUNE_LEDGER,
    SETTLE_CHUNK,
)

DAY: Final = 24 * 3600 * 1000
_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class JobKey:
    """Under what name the chunks of a job are remembered; ``batch`` is 0 but for streams."""

    job: str
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What a job did: ``created + updated + ignored`` is the number of rows it was given.

    ``is_complete`` is False while it runs and after it failed: then of the rows that were
    offered so far.
    """

    created: int
    updated: int
    ignored: int
    is_complete: bool = True

    @property
    def offered(self) -> int:
        return self.created + self.updated + self.ignored


def counts(job: str, dsn: str | None = None) -> Counts:
    """Return what the job has done, by the id given as option ``job``.

    For a stream the id of its query; all its batches are added up. ``created`` and ``updated``
    are what happened in the database. A job that nobody knows has zeros, and is not complete.

    >>> counts("campaign-7")
    Counts(created=990000, updated=0, ignored=10000, is_complete=True)
    """
    session = connect(Options(), dsn=dsn)
    try:
        return job_counts(session, job)
    finally:
        session.close()


def job_counts(session: Session, job: str) -> Counts:
    """Return the counts over a connection that is open; ends no transaction."""
    ((created, updated, ignored, is_complete),) = session.fetch(COUNT_JOB, {"job": job})
    return Counts(created, updated, ignored, bool(is_complete))


def claim_closing(session: Session, key: JobKey, rows: int) -> int | None:
    """Note that the batch is done and how many rows it had.

    Returns the id of that note; None if it was there before.
    """
    params = {"job": key.job, "batch": key.batch, "rows": rows, "now": None}
    closed = session.fetch(CLOSE_JOB, params)
    found: int | None = value_of(closed)
    return found


def settle(session: Session, row_id: int, created: int, updated: int) -> None:
    """Note what became of a chunk, or of a whole job, in the transaction that claimed it."""
    params = {"id": row_id, "created": created, "updated": updated}
    session.fetch(SETTLE_CHUNK, params)


def is_closed(session: Session, key: JobKey) -> bool:
    """Return whether the batch is done."""
    return bool(value_of(session.fetch(IS_CLOSED, {"job": key.job, "batch": key.batch})))


def prune_ledger(session: Session, days: int) -> int:
    """Forget up to 10,000 rows that are older; return how many they were."""
    params = {"age": days * DAY, "limit": _BATCH, "now": None}
    return len(session.fetch(PRUNE_LEDGER, params))
