"""One task's offers, each chunk in a transaction, at most once, and the ledger that counts them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import channel_of
from delayed_queue.db.sql import row_of, value_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.arrow import encode_rows, in_range, offers_of, one_array
from delayed_queue.spark.database import DriverError, Link, PsycopgSession, Session, connect
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.offering import (
    CLAIM_CHUNK,
    CLOSE_JOB,
    COUNT_JOB,
    IS_CLOSED,
    MERGE_IF_NOT_EXISTS,
    MERGE_OR_UPDATE,
    NOTIFY_KINDS,
    OFFERED_OF,
    OPEN_JOB,
    PRUNE_LEDGER,
    SETTLE_CHUNK,
    MergedRow,
)

if TYPE_CHECKING:
    from pyspark import TaskContext

T = TypeVar("T")


def chunks(batches: Iterable[pa.RecordBatch], rows: int, size: int) -> Iterator[pa.Table]:
    """Cut into tables of so many rows, or fewer where they would exceed so many bytes."""
    waiting: list[pa.RecordBatch] = []
    held = 0
    for batch in batches:
        for piece in _pieces(batch, rows, size):
            if waiting and (
                sum(each.num_rows for each in waiting) + piece.num_rows > rows
                or held + piece.nbytes > size
            ):
                yield pa.Table.from_batches(waiting)
                waiting, held = [], 0
            waiting.append(piece)
            held += piece.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _pieces(batch: pa.RecordBatch, rows: int, size: int) -> Iterator[pa.RecordBatch]:
    """Halve until it fits; one row that exceeds the size alone is a piece."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > rows or (batch.nbytes > size and batch.num_rows > 1):
        middle = min(rows, max(batch.num_rows // 2, 1))
        yield from _pieces(batch.slice(0, middle), rows, size)
        yield from _pieces(batch.slice(middle), rows, size)
        return
    yield batch


def digest_of(offers: pa.Table, *context: str) -> str:
    """Return what tells one chunk from another: what is offered, to what kind, and how."""
    # By instructions of the processor, so twice as fast as what is made for software.
    digest = sha256("\x00".join(context).encode())
    for batch in offers.combine_chunks().to_batches():
        digest.update(batch.serialize())
    return digest.hexdigest()


def due_times(offers: pa.Table, now: int) -> pa.Array:
    """Return when each is due: its schedule, or its delay from the job's own instant."""
    delayed = pc.add(pc.fill_null(offers["delay"], 0), now)
    return in_range(one_array(pc.coalesce(offers["schedule_at"], delayed)), "delay")


UNIQUE_VIOLATION: Final = "23505"
# After so many chunks with a key that exists, COPY is not tried first any more.
_MISSES: Final = 2

OFFER: Final = "The offer"
TABLE: Final = ("delayed_queue",)
STAGE: Final = ("pg_temp", "delayed_queue_offered")
# For the transaction only: behind a transaction pooler the session is others' too.
CREATE_STAGE: Final = """
CREATE TEMPORARY TABLE IF NOT EXISTS delayed_queue_offered (
    turn bigint,
    key text COLLATE "C",
    payload bytea,
    due_at bigint,
    headers jsonb,
    kind text,
    grouped text
) ON COMMIT DROP
"""


@dataclass(frozen=True, slots=True)
class Job:
    """The part that all tasks of a job share, pickled once: retries offer what the first try did.

    ``now`` is the database's clock when the job first started, also of one that goes on later.
    Schedules that are left out and delays count from it, so that rows that are offered again, in
    whatever order, have the same bytes and are IGNORED.
    """

    key: JobKey
    now: int
    options: Options

    @property
    def kind(self) -> str | None:
        """The kind of all rows; None where each says its own."""
        return self.options.kind


@dataclass(frozen=True, slots=True)
class Chunk:
    """Offers in key order, and how they are claimed; ``rows`` is what COPY takes of new keys."""

    claim: dict[str, Any]
    staged: pa.Table
    names: tuple[str, ...] = ()
    rows: memoryview | None = None


class PartitionOffers:
    """Offer the rows of one partition, and wake the workers once if some are due soon."""

    def __init__(self, job: Job, partition: int) -> None:
        self._job = job
        self._partition = partition
        self._link = Link(job.options)
        self._misses = 0
        self._soon: set[str] = set()

    def offer_all(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Offer everything; return how many rows there were.

        While the database writes a chunk the next one is checked and sorted, so two are in memory.
        """
        rows = 0
        options = self._job.options
        try:
            is_done = self._link.repeat(OFFER, lambda session: is_closed(session, self._job.key))
            # Whatever ends it, the chunk that is being written is waited for.
            with ThreadPoolExecutor(1, thread_name_prefix="delayed-queue-offer") as pool:
                writing: Future[None] | None = None
                for number, chunk in enumerate(chunks(batches, options.chunk, options.chunkBytes)):
                    rows += chunk.num_rows
                    if not is_done:
                        writing = self._begin(number, chunk, pool, writing)
                _wait_for(writing)
            self._wake()
        finally:
            self._link.close()
        return rows

    def _begin(
        self, number: int, rows: pa.Table, pool: ThreadPoolExecutor, before: Future[None] | None
    ) -> Future[None]:
        """Make the chunk ready, then begin to write it when the one before it is written."""
        offers = in_key_order(offers_of(rows, self._job.options.codec))
        due = due_times(offers, self._job.now)
        chunk = self._ready(self.claim_of(number, offers), staged_rows(offers, due))
        _wait_for(before)
        self._soon |= soon_kinds(self._job, offers, due)
        return pool.submit(self._write, chunk)

    def _ready(self, claim: dict[str, Any], staged: pa.Table) -> Chunk:
        if self._misses >= _MISSES or has_repeated_keys(staged):
            return Chunk(claim, staged)
        columns = self._stored(staged)
        return Chunk(claim, staged, tuple(columns), encode_rows(columns))

    def _write(self, chunk: Chunk) -> None:
        self._link.repeat(OFFER, lambda session: self._try(session, chunk))

    def claim_of(self, number: int, offers: pa.Table) -> dict[str, Any]:
        """Return the parameters that claim a chunk of offers, in key order, for this task."""
        job = self._job
        digest = digest_of(offers, job.kind or "", job.options.mode, job.options.codec)
        return job.key.note(self._partition, chunk=number, digest=digest, rows=offers.num_rows)

    def _try(self, session: PsycopgSession, chunk: Chunk) -> None:
        """Offer the chunk, unless an earlier attempt, or a twin, has done so and counted it."""
        if chunk.rows is not None and self._misses < _MISSES:
            try:
                self._copy(session, chunk, chunk.rows)
            except DriverError as error:
                if error.sqlstate != UNIQUE_VIOLATION:
                    raise
                # The whole transaction is lost with it; the claim is made anew.
                session.rollback()
                self._misses += 1
            else:
                return
        self._merge(session, chunk)

    def _copy(self, session: PsycopgSession, chunk: Chunk, rows: memoryview) -> None:
        """Offer rows whose keys are all new, which the unique index has the last word on."""
        if session.fetch(CLAIM_CHUNK, {**chunk.claim, "created": chunk.staged.num_rows}):
            session.copy(TABLE, chunk.names, rows)

    def _stored(self, staged: pa.Table) -> dict[str, Any]:
        columns = {
            "pKey": staged["key"],
            "pKind": staged["kind"] if self._job.kind is None else pa.scalar(self._job.kind),
            "payload": staged["payload"],
            "scheduledAt": staged["due_at"],
            "scheduledAtInitially": staged["due_at"],
            "createdAt": pa.scalar(self._job.now, pa.int64()),
        }
        if staged["headers"].null_count < staged.num_rows:
            columns["headers"] = staged["headers"]
            columns["versionAt"] = columns["createdAt"]
        if staged["grouped"].null_count < staged.num_rows:
            columns["group"] = staged["grouped"]
        return columns

    def _merge(self, session: PsycopgSession, chunk: Chunk) -> None:
        claimed = session.fetch(CLAIM_CHUNK, chunk.claim)
        if claimed:
            created, updated = self._merged(session, chunk.staged)
            settle(session, value_of(claimed), created, updated)

    def _merged(self, session: PsycopgSession, staged: pa.Table) -> tuple[int, int]:
        """Offer rows of which some exist, turn by turn where a key comes more than once."""
        session.run(CREATE_STAGE)
        columns = {name: staged[name] for name in staged.column_names}
        session.copy(STAGE, columns, encode_rows(columns))
        is_upsert = self._job.options.mode == "upsert"
        statement = MERGE_OR_UPDATE if is_upsert else MERGE_IF_NOT_EXISTS
        created = updated = 0
        # Without updates, whatever comes after the first of a key is IGNORED.
        for turn in range(pc.max(staged["turn"]).as_py() + 1 if is_upsert else 1):
            params = {"kind": self._job.kind, "now": self._job.now, "turn": turn}
            more = row_of(MergedRow, session.fetch(statement, params))
            created, updated = created + more.created, updated + more.updated
        if created == staged.num_rows:
            self._misses = 0
        return created, updated

    def _wake(self) -> None:
        if self._soon and self._job.options.notify:
            self._link.repeat(OFFER, lambda session: wake(session, self._soon))


def _wait_for(writing: Future[None] | None) -> None:
    if writing is not None:
        writing.result()


def soon_kinds(job: Job, offers: pa.Table, due: Any) -> set[str]:
    """Return the kinds of which a sleeping worker could be late for a message unless woken."""
    soon = pc.less_equal(due, job.now + job.options.pollInterval)
    if job.kind is not None:
        return {job.kind} if pc.any(soon).as_py() else set()
    return set(pc.unique(offers["kind"].filter(soon)).to_pylist())


def wake(session: Session, kinds: Iterable[str]) -> None:
    """Wake those who wait for messages of these kinds, when the transaction commits."""
    session.fetch(NOTIFY_KINDS, {"channels": [channel_of(kind) for kind in kinds]})


def in_key_order(offers: pa.Table) -> pa.Table:
    """Return the offers in the order of the unique index; equal keys stay in their order.

    So two jobs with the same keys cannot deadlock, and a chunk of the same offers in another order
    is the same chunk.
    """
    if _is_one_kind(offers):
        return offers.take(pc.sort_indices(offers["key"]))
    columns = [("key", "ascending"), ("kind", "ascending")]
    return offers.take(pc.sort_indices(offers.select(["key", "kind"]), sort_keys=columns))


def staged_rows(offers: pa.Table, due: pa.Array) -> pa.Table:
    """Return the offers, which are in key order, as they are staged: with the turn of each key."""
    kinds = None if _is_one_kind(offers) else offers["kind"].combine_chunks()
    return pa.table(
        {
            "turn": turns(offers["key"].combine_chunks(), kinds),
            "key": offers["key"],
            "payload": offers["payload"],
            "due_at": due,
            "headers": jsonb(offers["headers"]),
            "kind": offers["kind"],
            "grouped": offers["group"],
        }
    )


def _is_one_kind(offers: pa.Table) -> bool:
    """Return whether keys alone tell the rows apart; those of an import have a kind each."""
    return len(pc.unique(offers["kind"])) == 1


def turns(keys: pa.Array, kinds: pa.Array | None = None) -> pa.Array:
    """Return for each of the sorted keys, of a kind, how many equal ones come before it."""
    count = len(keys)
    is_first = pc.not_equal(keys.slice(1), keys.slice(0, count - 1))
    if kinds is not None:
        is_first = pc.or_(is_first, pc.not_equal(kinds.slice(1), kinds.slice(0, count - 1)))
    if pc.all(is_first).as_py():
        return pa.repeat(pa.scalar(0, pa.int64()), count)
    index = pa.array(range(count), pa.int64())
    starts = pc.if_else(pa.concat_arrays([pa.array([True]), is_first]), index, 0)
    return pc.subtract(index, pc.cumulative_max(starts))


def has_repeated_keys(staged: pa.Table) -> bool:
    return bool(pc.max(staged["turn"]).as_py())


def jsonb(texts: Any) -> pa.Array:
    """Return JSON as COPY wants it for a jsonb column: the version of the format, then text."""
    return pc.binary_join_element_wise("\x01", texts.combine_chunks(), "").cast(pa.binary())


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
        raise InvalidConfiguration("This is done by tasks of Spark only.")
    query_id, batch = (context.getLocalProperty(name) for name in _OF_BATCH)
    if query_id is None or batch is None:
        raise InvalidConfiguration("Spark does not say which batch of which query this is.")
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
    with closing(connect(Options(), dsn=dsn)) as session:
        return job_counts(session, job)


def job_counts(session: Session, job: str) -> Counts:
    """Return the counts over a connection that is open; ends no transaction."""
    ((created, updated, ignored, is_complete),) = session.fetch(COUNT_JOB, {"job": job})
    return Counts(created, updated, ignored, bool(is_complete))


def open_job(session: Session, key: JobKey) -> int:
    """Note that the job starts; return when it first did, on the database's clock."""
    return int(value_of(session.fetch(OPEN_JOB, key.note(OPENED))))


def check_offered(session: Session, key: JobKey, rows: int) -> None:
    """Raise InvalidConfiguration where more was offered than the rows that the job was given."""
    offered = int(value_of(session.fetch(OFFERED_OF, {"job": key.job})))
    if offered > rows:
        raise InvalidConfiguration(
            f"The job {key.job!r} was given {rows:,} rows and has created or updated {offered:,}: "
            "a repeated task brought other rows, or the same ones in another order. Make keys and "
            "order from the data, not by uuid(), rand() or an unordered shuffle; or write the rows "
            "to files, and offer those."
        )


def claim_closing(session: Session, key: JobKey, rows: int) -> int | None:
    """Note that the batch is done and how many rows it had.

    Returns the id of that note; None if it was there before.
    """
    closed = session.fetch(CLOSE_JOB, key.note(CLOSED, rows=rows))
    found: int | None = value_of(closed)
    return found


def settle(session: Session, row_id: int, created: int, updated: int) -> None:
    """Note what became of a chunk, or of a whole job, in the transaction that claimed it."""
    params = {"id": row_id, "created": created, "updated": updated}
    session.fetch(SETTLE_CHUNK, params)


def is_closed(session: Session, key: JobKey) -> bool:
    """Return whether the batch is done."""
    return bool(value_of(session.fetch(IS_CLOSED, asdict(key))))


def then_pruned(options: Options, what: str, work: Callable[[PsycopgSession], T]) -> T:
    """Do the work of a batch that is done; then forget what the ledger has kept long enough."""
    with closing(Link(options)) as link:
        answer = link.repeat(what, work)
        link.repeat(what, lambda session: prune_ledger(session, options.ledgerDays))
    return answer


def prune_ledger(session: Session, days: int) -> int:
    """Forget up to 10,000 rows that are older; return how many they were."""
    params = {"age": days * DAY, "limit": _BATCH, "now": None}
    return len(session.fetch(PRUNE_LEDGER, params))
