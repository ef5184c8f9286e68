"""One task's offers, each chunk in a transaction, at most once, and the ledger that counts them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.codecs import channel_of, codec_named, decode, encode
from delayed_queue.db.sql import NOTIFY, row_of, value_of
from delayed_queue.exceptions import InvalidMessage, PayloadNotDecodable
from delayed_queue.messages import (
    MAX_KEY_LENGTH,
    MAX_MILLISECONDS,
    MIN_MILLISECONDS,
    encode_headers,
)
from delayed_queue.spark.arrow import encode_rows
from delayed_queue.spark.database import DriverError, Link, PsycopgSession, Session, connect
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.offering import (
    CLAIM_CHUNK,
    CLOSE_JOB,
    COUNT_JOB,
    IS_CLOSED,
    MERGE_IF_NOT_EXISTS,
    MERGE_OR_UPDATE,
    PRUNE_LEDGER,
    SETTLE_CHUNK,
    MergedRow,
)

# What every chunk has: one form, so that its digest depends on what is offered alone.
OFFERS: Final = pa.schema(
    [
        ("key", pa.string()),
        ("payload", pa.binary()),
        ("schedule_at", pa.int64()),
        ("delay", pa.int64()),
        ("headers", pa.string()),
    ]
)


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


def offers_of(rows: pa.Table, codec: str) -> pa.Table:
    """Return the rows as offers, or raise InvalidMessage naming column and reason."""
    count = rows.num_rows
    makers: dict[str, Callable[[pa.Array], pa.Array]] = {
        "key": _keys,
        "payload": lambda column: _payloads(column, codec),
        "schedule_at": _schedules,
        "delay": _delays,
        "headers": _headers,
    }
    columns = [
        makers[field.name](rows.column(field.name).combine_chunks())
        if field.name in rows.column_names
        else pa.nulls(count, field.type)
        for field in OFFERS
    ]
    offers = pa.table([_one(column) for column in columns], schema=OFFERS)
    _refuse(
        pc.and_(pc.is_valid(offers["schedule_at"]), pc.is_valid(offers["delay"])),
        offers["key"],
        "delay",
        "is given beside a schedule_at; give one of them",
    )
    return offers


def _one(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _refuse(wrong: Any, keys: Any, column: str, reason: str) -> None:
    """Raise for the first row that is wrong; the key names it, and never the payload."""
    if pc.any(wrong).as_py():
        key = keys[pc.index(wrong, True).as_py()].as_py()
        raise InvalidMessage(f"The column {column} {reason} (key {str(key)[:40]!r}).")


def _keys(column: pa.Array) -> pa.Array:
    keys = column.cast(pa.string())
    _refuse(pc.is_null(keys), keys, "key", "is null")
    lengths = pc.utf8_length(keys)
    _refuse(pc.equal(lengths, 0), keys, "key", "is empty")
    too_long = pc.greater(lengths, MAX_KEY_LENGTH)
    _refuse(too_long, keys, "key", f"has more than {MAX_KEY_LENGTH} characters")
    if _may_have_nul(keys):
        _refuse(pc.match_substring(keys, "\x00"), keys, "key", "contains a NUL character")
    return keys


def _may_have_nul(texts: pa.Array) -> bool:
    """Look through the bytes of all at once; they may be others' too, of which this is a slice."""
    data = texts.buffers()[2]
    return data is not None and b"\x00" in data.to_pybytes()


def _payloads(column: pa.Array, codec: str) -> pa.Array:
    if column.null_count:
        raise InvalidMessage("The column payload is null.")
    if codec == "json" and not pa.types.is_binary(column.type):
        return pa.array(map(_canonical, column.to_pylist()), pa.binary())
    return column.cast(pa.binary())


_JSON: Final = codec_named("json")


def _canonical(text: str) -> bytes:
    """Return the bytes that Django's side would store: a repetition is identified by its bytes."""
    try:
        return encode(_JSON, decode(_JSON, text.encode()))
    except (PayloadNotDecodable, InvalidMessage):
        # Without the cause, which would quote the payload.
        raise InvalidMessage("The column payload is not JSON, which the codec asks for.") from None


def _schedules(column: pa.Array) -> pa.Array:
    # Floored, also before 1970, as everywhere.
    floored = pc.floor_temporal(column, unit="millisecond")
    milliseconds = floored.cast(pa.timestamp("ms", column.type.tz)).cast(pa.int64())
    return _in_range(milliseconds, "schedule_at")


def _in_range(milliseconds: pa.Array, column: str) -> pa.Array:
    wrong = pc.or_(
        pc.less(milliseconds, MIN_MILLISECONDS), pc.greater(milliseconds, MAX_MILLISECONDS)
    )
    if pc.any(wrong).as_py():
        raise InvalidMessage(f"The column {column} leads outside the years 1 to 9999.")
    return milliseconds


def _delays(column: pa.Array) -> pa.Array:
    if pa.types.is_duration(column.type):
        # Floored like a timestamp, which has the function for it.
        as_times = column.cast(pa.int64()).cast(pa.timestamp("us"))
        return (
            pc.floor_temporal(as_times, unit="millisecond")
            .cast(pa.timestamp("ms"))
            .cast(pa.int64())
        )
    return column.cast(pa.int64())


def _headers(column: pa.Array) -> pa.Array:
    return pa.array(map(_header_text, column.to_pylist()), pa.string())


def _header_text(value: Any) -> str | None:
    if value is None:
        return None
    try:
        return encode_headers(json.loads(value) if isinstance(value, str) else dict(value))
    except ValueError:
        raise InvalidMessage("The column headers is not a JSON object, or no text in it.") from None


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
    return _in_range(_one(pc.coalesce(offers["schedule_at"], delayed)), "delay")


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
    headers jsonb
) ON COMMIT DROP
"""


@dataclass(frozen=True, slots=True)
class Job:
    """The part that all tasks of a job share, pickled once: retries offer what the first try did.

    ``now`` is the database's clock when the job began. Schedules that are left out and delays
    count from it, so that a repeated chunk brings the same bytes and is IGNORED.
    """

    key: JobKey
    now: int
    options: Options

    @property
    def kind(self) -> str:
        return self.options.required_kind


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
        self._is_soon = False

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
        offers = offers_of(rows, self._job.options.codec)
        due = due_times(offers, self._job.now)
        chunk = self._ready(self.claim_of(number, offers), in_key_order(offers, due))
        _wait_for(before)
        self._is_soon = self._is_soon or is_soon(self._job, due)
        return pool.submit(self._write, chunk)

    def _ready(self, claim: dict[str, Any], staged: pa.Table) -> Chunk:
        if self._misses >= _MISSES or has_repeated_keys(staged):
            return Chunk(claim, staged)
        columns = self._stored(staged)
        return Chunk(claim, staged, tuple(columns), encode_rows(columns))

    def _write(self, chunk: Chunk) -> None:
        self._link.repeat(OFFER, lambda session: self._try(session, chunk))

    def claim_of(self, number: int, offers: pa.Table) -> dict[str, Any]:
        """Return the parameters that claim a chunk of offers for this task."""
        job = self._job
        return {
            "job": job.key.job,
            "batch": job.key.batch,
            "partition": self._partition,
            "chunk": number,
            "digest": digest_of(offers, job.kind, job.options.mode, job.options.codec),
            "rows": offers.num_rows,
            "created": 0,
            "now": None,
        }

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
            "pKind": pa.scalar(self._job.kind),
            "payload": staged["payload"],
            "scheduledAt": staged["due_at"],
            "scheduledAtInitially": staged["due_at"],
            "createdAt": pa.scalar(self._job.now, pa.int64()),
        }
        if staged["headers"].null_count < staged.num_rows:
            columns["headers"] = staged["headers"]
            columns["versionAt"] = columns["createdAt"]
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
        if self._is_soon and self._job.options.notify:
            channel = channel_of(self._job.kind)
            self._link.repeat(OFFER, lambda session: session.fetch(NOTIFY, {"channel": channel}))


def _wait_for(writing: Future[None] | None) -> None:
    if writing is not None:
        writing.result()


def is_soon(job: Job, due: Any) -> bool:
    """Return whether a sleeping worker could be late for one of them unless woken."""
    return bool(pc.min(due).as_py() <= job.now + job.options.pollInterval)


def in_key_order(offers: pa.Table, due: pa.Array) -> pa.Table:
    """Return the offers by key, with the turn within their key.

    By key, in the order of the unique index: two jobs with the same keys cannot deadlock.
    """
    order = pc.sort_indices(offers["key"])
    ordered = offers.select(["key", "payload", "headers"]).take(order)
    return pa.table(
        {
            "turn": turns(ordered["key"].combine_chunks()),
            "key": ordered["key"],
            "payload": ordered["payload"],
            "due_at": due.take(order),
            "headers": jsonb(ordered["headers"]),
        }
    )


def turns(keys: pa.Array) -> pa.Array:
    """Return for each of the sorted keys how many equal ones come before it."""
    count = len(keys)
    is_first = pc.not_equal(keys.slice(1), keys.slice(0, count - 1))
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
