"""The ledger: the identity of jobs, their counts, and the proof that each chunk counts once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from delayed_queue.db.sql import value_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.database import Connection, Link, fetch
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.store.offering import (
    CLOSE_JOB,
    COUNT_JOB,
    IS_CLOSED,
    OFFERED_OF,
    OPEN_JOB,
    PRUNE_LEDGER,
    SETTLE_CHUNK,
    MergedRow,
)

if TYPE_CHECKING:
    from pyspark import TaskContext

T = TypeVar("T")

OFFER: Final = "The offer"
# Rows of the ledger and of the stage are kept for 30 days, and deleted at most 10,000 at a time.
KEPT: Final = {"age": 30 * 24 * 3600 * 1000, "limit": 10_000}


# Places in the ledger that are no partitions, which count from 0.
CLOSED: Final = -1
OPENED: Final = -2
# Local properties of a streaming task. Spark's API passes the batch to commit() only.
_OF_BATCH: Final = ("sql.streaming.queryId", "streaming.sql.batchId")


@dataclass(frozen=True, slots=True)
class JobKey:
    """The name of a job's chunks in the ledger; ``batch`` is 0 except for streams."""

    job: str
    batch: int = 0

    def note(
        self, partition: int, *, chunk: int = 0, digest: str = "", rows: int = 0
    ) -> dict[str, Any]:
        """Return the parameters of a ledger row of the batch."""
        place = {"partition": partition, "chunk": chunk, "digest": digest}
        return {**asdict(self), **place, "rows": rows, "created": 0, "now": None}


def task_of_stream() -> tuple[TaskContext, JobKey]:
    """Return the current task, and the key of its micro-batch, which survives a restart."""
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
    """The results of a job: ``created + updated + ignored`` is the number of its rows.

    Never more: rows that a repeated task offered in addition are left out, and the write has
    raised an error. While it runs and after a failure ``is_complete`` is False, and the counts are
    of the rows offered so far.
    """

    created: int
    updated: int
    ignored: int
    is_complete: bool = True

    @property
    def offered(self) -> int:
        return self.created + self.updated + self.ignored


def counts(job: str, dsn: str | None = None) -> Counts:
    """Return the counts of a job, by its option ``job``.

    For a stream, give the id of its query; the counts are of all its batches. ``created`` and
    ``updated`` are changes in the database. An unknown job has zeros, and is not complete.

    >>> counts("campaign-7")
    Counts(created=990000, updated=0, ignored=10000, is_complete=True)
    """
    with closing(Link(Options(), dsn=dsn)) as link:
        (row,) = link.fetch("Reading the counts", COUNT_JOB, {"job": job})
    created, updated, ignored, is_complete = row
    return Counts(created, updated, ignored, bool(is_complete))


def open_job(connection: Connection, key: JobKey) -> int:
    """Record the start of the job; return its first start, on the database's clock."""
    return int(value_of(fetch(connection, OPEN_JOB, key.note(OPENED))))


def check_offered(connection: Connection, key: JobKey, rows: int) -> None:
    """Raise InvalidConfiguration if more was offered than the job's rows."""
    offered = int(value_of(fetch(connection, OFFERED_OF, {"job": key.job})))
    if offered > rows:
        raise InvalidConfiguration(
            f"The job {key.job!r} was given {rows:,} rows and has created or updated {offered:,}: "
            "a repeated task brought other rows, or the same ones in another order. Make keys and "
            "order from the data, not by uuid(), rand() or an unordered shuffle; or write the rows "
            "to files, and offer those."
        )


def claim_closing(connection: Connection, key: JobKey, rows: int) -> int | None:
    """Record that the batch is done, and its rows; return the row's id, or None if it existed."""
    closed = fetch(connection, CLOSE_JOB, key.note(CLOSED, rows=rows))
    found: int | None = value_of(closed)
    return found


def settle(connection: Connection, row_id: int, found: MergedRow) -> None:
    """Record the results of a chunk or a job, in the transaction that claimed it."""
    params = {"id": row_id, "created": found.created, "updated": found.updated}
    fetch(connection, SETTLE_CHUNK, params)


def is_closed(connection: Connection, key: JobKey) -> bool:
    """Return whether the batch is done."""
    return bool(value_of(fetch(connection, IS_CLOSED, asdict(key))))


def then_pruned(options: Options, what: str, work: Callable[[Connection], T]) -> T:
    """Do the work of a finished batch, then prune the ledger."""
    with closing(Link(options)) as link:
        answer = link.repeat(what, work)
        link.repeat(what, prune_ledger)
    return answer


def prune_ledger(connection: Connection) -> int:
    """Delete up to 10,000 rows of the ledger that are too old; return their number."""
    return len(fetch(connection, PRUNE_LEDGER, {**KEPT, "now": None}))
