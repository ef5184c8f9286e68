"""The ledger: under which names jobs are remembered, what they did, and that each counts once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from delayed_queue.db.sql import value_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import Connection, Link, connect, fetch
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.store.offering import (
    CLOSE_JOB,
    COUNT_JOB,
    IS_CLOSED,
    OFFERED_OF,
    OPEN_JOB,
    PRUNE_LEDGER,
    SETTLE_CHUNK,
)

if TYPE_CHECKING:
    from pyspark import TaskContext

T = TypeVar("T")

OFFER: Final = "The offer"
DAY: Final = 24 * 3600 * 1000
_BATCH: Final = 10_000


# Where in the ledger a batch is closed, and a job opened: partitions count from 0.
CLOSED: Final = -1
OPENED: Final = -2
# Spark sets them where it runs a batch; its API gives the batch to commit() only.
_OF_BATCH: Final = ("sql.streaming.queryId", "streaming.sql.batchId")


@dataclass(frozen=True, slots=True)
class JobKey:
    """Under what name the chunks of a job are remembered; ``batch`` is 0 but for streams."""

    job: str
    batch: int = 0

    def note(
        self, partition: int, *, chunk: int = 0, digest: str = "", rows: int = 0
    ) -> dict[str, Any]:
        """Return the parameters that note something of the batch in the ledger, at this place."""
        place = {"partition": partition, "chunk": chunk, "digest": digest}
        return {**asdict(self), **place, "rows": rows, "created": 0, "now": None}


def task_of_stream() -> tuple[TaskContext, JobKey]:
    """Return the task that this is, and the key of its micro-batch, the same after a restart."""
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise InvalidConfiguration("Only tasks of Spark can do this.")
    query_id, batch = (context.getLocalProperty(name) for name in _OF_BATCH)
    if query_id is None or batch is None:
        raise InvalidConfiguration("Spark does not report the query and the batch of this task.")
    return context, JobKey(query_id, int(batch))


@dataclass(frozen=True, slots=True)
class Counts:
    """What a job did: ``created + updated + ignored`` is the number of rows it was given.

    Never more: what was offered twice, by a task that brought other rows when it was repeated, is
    left out, and the write has raised an error.

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
    with closing(connect(Options(), dsn=dsn)) as connection:
        return job_counts(connection, job)


def job_counts(connection: Connection, job: str) -> Counts:
    """Return the counts over a connection that is open; ends no transaction."""
    ((created, updated, ignored, is_complete),) = fetch(connection, COUNT_JOB, {"job": job})
    return Counts(created, updated, ignored, bool(is_complete))


def open_job(connection: Connection, key: JobKey) -> int:
    """Note that the job starts; return when it first did, on the database's clock."""
    return int(value_of(fetch(connection, OPEN_JOB, key.note(OPENED))))


def check_offered(connection: Connection, key: JobKey, rows: int) -> None:
    """Raise InvalidConfiguration where more was offered than the rows that the job was given."""
    offered = int(value_of(fetch(connection, OFFERED_OF, {"job": key.job})))
    if offered > rows:
        raise InvalidConfiguration(
            f"The job {key.job!r} was given {rows:,} rows and has created or updated {offered:,}: "
            "a repeated task brought other rows, or the same ones in another order. Make keys and "
            "order from the data, not by uuid(), rand() or an unordered shuffle; or write the rows "
            "to files, and offer those."
        )


def claim_closing(connection: Connection, key: JobKey, rows: int) -> int | None:
    """Note that the batch is done and how many rows it had.

    Returns the id of that note; None if it was there before.
    """
    closed = fetch(connection, CLOSE_JOB, key.note(CLOSED, rows=rows))
    found: int | None = value_of(closed)
    return found


def settle(connection: Connection, row_id: int, created: int, updated: int) -> None:
    """Note what became of a chunk, or of a whole job, in the transaction that claimed it."""
    params = {"id": row_id, "created": created, "updated": updated}
    fetch(connection, SETTLE_CHUNK, params)


def is_closed(connection: Connection, key: JobKey) -> bool:
    """Return whether the batch is done."""
    return bool(value_of(fetch(connection, IS_CLOSED, asdict(key))))


def then_pruned(options: Options, what: str, work: Callable[[Connection], T]) -> T:
    """Do the work of a batch that is done; then forget what the ledger has kept long enough."""
    with closing(Link(options)) as link:
        answer = link.repeat(what, work)
        link.repeat(what, lambda connection: prune_ledger(connection, options.ledgerDays))
    return answer


def prune_ledger(connection: Connection, days: int) -> int:
    """Forget up to 10,000 rows that are older; return how many they were."""
    params = {"age": days * DAY, "limit": _BATCH, "now": None}
    return len(fetch(connection, PRUNE_LEDGER, params))
