"""The offers of one task: each chunk in a transaction, exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.errors import UniqueViolation

from delayed_queue.codecs import channel_of
from delayed_queue.db.sql import value_of
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.spark.database import Connection, Link, Row, copy_rows, fetch
from delayed_queue.spark.source.arrow import encode_rows
from delayed_queue.spark.source.ledger import OFFER, JobKey, is_closed, settle
from delayed_queue.spark.source.members import hold_batch, move_updated
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.rules import OUT_OF_RANGE, is_out_of_range, offers_of, one_array
from delayed_queue.spark.store.offering import (
    CLAIM_CHUNK,
    MERGE_IF_NOT_EXISTS,
    MERGE_MEMBERS_IF_NOT_EXISTS,
    MERGE_MEMBERS_OR_UPDATE,
    MERGE_OR_UPDATE,
    NOTIFY_KINDS,
    MergedRow,
)

# Bytes of a chunk, of which a task holds two in memory.
CHUNK_BYTES: Final = 64 * 1024 * 1024


def chunks(
    batches: Iterable[pa.RecordBatch], rows: int, size: int = CHUNK_BYTES
) -> Iterator[pa.Table]:
    """Yield tables of at most ``rows`` rows and ``size`` bytes."""
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
    """Yield the batch in halves that fit; a single row may exceed the size."""
    if batch.num_rows == 0:
        return
    if batch.num_rows > rows or (batch.nbytes > size and batch.num_rows > 1):
        middle = min(rows, max(batch.num_rows // 2, 1))
        yield from _pieces(batch.slice(0, middle), rows, size)
        yield from _pieces(batch.slice(middle), rows, size)
        return
    yield batch


def digest_of(offers: pa.Table, *context: str) -> str:
    """Return a digest of a chunk: its offers, their kind and the options."""
    # SHA-256 has processor instructions, so it is faster than software hashes.
    digest = sha256("\x00".join(context).encode())
    for batch in offers.combine_chunks().to_batches():
        digest.update(batch.serialize())
    return digest.hexdigest()


def due_times(offers: pa.Table, now: int) -> pa.Array:
    """Return the due time of each offer: its schedule, or its delay from the job's start."""
    delayed = pc.add(pc.fill_null(offers["delay"], 0), now)
    due = one_array(pc.coalesce(offers["schedule_at"], delayed))
    if pc.any(is_out_of_range(due)).as_py():
        raise InvalidMessage(f"The column delay is refused: {OUT_OF_RANGE}")
    if pc.any(pc.less_equal(offers["expires_at"], due)).as_py():
        raise InvalidMessage("The column expires_at is refused: it is not after the due time.")
    return due


# Milliseconds: by then sleeping workers poll again.
_POLL_INTERVAL: Final = 3_000
# After N chunks with an existing key, COPY is no longer tried first.
_MISSES: Final = 2

_MERGES: Final = (MERGE_IF_NOT_EXISTS, MERGE_OR_UPDATE)
_MERGES_OF_BATCH: Final = (MERGE_MEMBERS_IF_NOT_EXISTS, MERGE_MEMBERS_OR_UPDATE)
TABLE: Final = ("delayed_queue",)
STAGE: Final = ("pg_temp", "delayed_queue_offered")
# Dropped with the transaction: behind a transaction pooler, sessions are shared.
CREATE_STAGE: Final = """
CREATE TEMPORARY TABLE IF NOT EXISTS delayed_queue_offered (
    turn bigint,
    key text COLLATE "C",
    payload bytea,
    due_at bigint,
    headers jsonb,
    kind text,
    grouped text,
    expires_at bigint
) ON COMMIT DROP
"""


@dataclass(frozen=True, slots=True)
class Job:
    """The data that all tasks of a job share.

    ``now`` is the first start of the job on the database's clock, also for a resumed job. Missing
    schedules and delays count from it, so that repeated rows, in any order, have the same bytes and
    are IGNORED.
    """

    key: JobKey
    now: int
    options: Options


@dataclass(frozen=True, slots=True)
class Chunk:
    """Offers in key order, and the claim of the chunk; ``rows`` are the encoded rows of COPY."""

    claim: dict[str, Any]
    staged: pa.Table
    names: tuple[str, ...] = ()
    rows: memoryview | None = None


class PartitionOffers:
    """Offers the rows of one partition, and wakes the workers once if some are due soon."""

    def __init__(self, job: Job, partition: int) -> None:
        self._job = job
        self._partition = partition
        self._link = Link(job.options)
        self._misses = 0
        self._soon: set[str] = set()

    def offer_all(self, batches: Iterator[pa.RecordBatch], *, are_checked: bool = False) -> int:
        """Offer all rows; return their number.

        While the database writes a chunk, the next one is checked and sorted: two are in memory.
        Rows that ``are_checked`` are offers already.
        """
        rows = 0
        options = self._job.options
        try:
            is_done = self._link.repeat(
                OFFER, lambda connection: is_closed(connection, self._job.key)
            )
            # The pool waits for the chunk that is being written, also after an error.
            with ThreadPoolExecutor(1, thread_name_prefix="delayed-queue-offer") as pool:
                writing: Future[None] | None = None
                for number, chunk in enumerate(chunks(batches, options.chunk)):
                    rows += chunk.num_rows
                    if is_done:
                        continue
                    offers = chunk if are_checked else offers_of(chunk, options.codec)
                    writing = self._begin(number, offers, pool, writing)
                _wait_for(writing)
            self._wake()
        finally:
            self._link.close()
        return rows

    def _begin(
        self, number: int, offers: pa.Table, pool: ThreadPoolExecutor, before: Future[None] | None
    ) -> Future[None]:
        """Prepare the chunk, and start its write after that of the chunk before."""
        offers = in_key_order(offers)
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
        self._link.repeat(OFFER, lambda connection: self._try(connection, chunk))

    def claim_of(self, number: int, offers: pa.Table) -> dict[str, Any]:
        """Return the parameters that claim a chunk of offers in key order."""
        job = self._job
        digest = digest_of(offers, job.options.kind or "", job.options.mode, job.options.codec)
        return job.key.note(self._partition, chunk=number, digest=digest, rows=offers.num_rows)

    def _try(self, connection: Connection, chunk: Chunk) -> None:
        """Offer the chunk, unless an earlier attempt or a twin of the task has offered it."""
        if chunk.rows is not None and self._misses < _MISSES:
            try:
                self._copy(connection, chunk, chunk.rows)
            except UniqueViolation:
                # The transaction is lost with its claim, which is repeated below.
                connection.rollback()
                self._misses += 1
            else:
                return
        self._merge(connection, chunk)

    def _copy(self, connection: Connection, chunk: Chunk, rows: memoryview) -> None:
        """Offer rows whose keys are new; the unique index raises otherwise."""
        if self._claimed(connection, {**chunk.claim, "created": chunk.staged.num_rows}):
            copy_rows(connection, TABLE, chunk.names, rows)

    def _claimed(self, connection: Connection, claim: dict[str, Any]) -> list[Row]:
        """Return the claim of a chunk that is not offered yet; its batch stays open meanwhile."""
        if claimed := fetch(connection, CLAIM_CHUNK, claim):
            hold_batch(connection, self._job.options.batch)
        return claimed

    def _stored(self, staged: pa.Table) -> dict[str, Any]:
        kind = self._job.options.kind
        columns = {
            "pKey": staged["key"],
            "pKind": staged["kind"] if kind is None else pa.scalar(kind),
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
        if staged["expires_at"].null_count < staged.num_rows:
            columns |= {"expiresAt": staged["expires_at"], "versionAt": columns["createdAt"]}
        if self._job.options.batch is not None:
            columns["batchId"] = pa.scalar(self._job.options.batch, pa.int64())
        return columns

    def _merge(self, connection: Connection, chunk: Chunk) -> None:
        if claimed := self._claimed(connection, chunk.claim):
            settle(connection, value_of(claimed), self._merged(connection, chunk.staged))

    def _merged(self, connection: Connection, staged: pa.Table) -> MergedRow:
        """Offer rows of which some may exist, in several turns if keys are repeated."""
        connection.execute(CREATE_STAGE)
        columns = {name: staged[name] for name in staged.column_names}
        copy_rows(connection, STAGE, columns, encode_rows(columns))
        turns = pc.max(staged["turn"]).as_py() + 1
        statements = _MERGES if self._job.options.batch is None else _MERGES_OF_BATCH
        found = merged(connection, self._job, statements, turns, {})
        if found.created == staged.num_rows:
            self._misses = 0
        return found

    def _wake(self) -> None:
        if self._soon:
            self._link.repeat(OFFER, lambda connection: wake(connection, self._soon))


def merged(
    connection: Connection,
    job: Job,
    statements: Sequence[str],
    turns: int,
    which: Mapping[str, Any],
) -> MergedRow:
    """Offer staged rows by the statement of the mode; with updates, equal keys in turns."""
    is_upsert, batch = job.options.mode == "upsert", job.options.batch
    created = updated = 0
    which = {**which, "kind": job.options.kind, "now": job.now, "batch": batch}
    # Without updates, all but the first row of a key are IGNORED.
    for turn in range(turns if is_upsert else min(turns, 1)):
        (row,) = fetch(connection, statements[is_upsert], {**which, "turn": turn})
        more = MergedRow(*row)
        if batch is not None and more.elsewhere:
            move_updated(connection, batch, more.elsewhere)
        created, updated = created + more.created, updated + more.updated
    return MergedRow(created, updated)


def _wait_for(writing: Future[None] | None) -> None:
    if writing is not None:
        writing.result()


def soon_kinds(job: Job, offers: pa.Table, due: Any) -> set[str]:
    """Return the kinds with messages due before a sleeping worker would poll again."""
    soon = pc.less_equal(due, job.now + _POLL_INTERVAL)
    if (kind := job.options.kind) is not None:
        return {kind} if pc.any(soon).as_py() else set()
    return set(pc.unique(offers["kind"].filter(soon)).to_pylist())


def wake(connection: Connection, kinds: Iterable[str]) -> None:
    """Wake the workers of these kinds when the transaction commits."""
    fetch(connection, NOTIFY_KINDS, {"channels": [channel_of(kind) for kind in kinds]})


def in_key_order(offers: pa.Table) -> pa.Table:
    """Return the offers in the order of the unique index; equal keys keep their order.

    So two jobs with the same keys cannot deadlock, and the order of a chunk's rows does not matter.
    """
    if _is_one_kind(offers):
        return offers.take(pc.sort_indices(offers["key"]))
    columns = [("key", "ascending"), ("kind", "ascending")]
    return offers.take(pc.sort_indices(offers.select(["key", "kind"]), sort_keys=columns))


def staged_rows(offers: pa.Table, due: pa.Array) -> pa.Table:
    """Return offers in key order as rows of the stage, with the turn of each key."""
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
            "expires_at": offers["expires_at"],
        }
    )


def _is_one_kind(offers: pa.Table) -> bool:
    """Return whether all rows have one kind, so that keys identify them."""
    return len(pc.unique(offers["kind"])) == 1


def turns(keys: pa.Array, kinds: pa.Array | None = None) -> pa.Array:
    """Return the number of equal keys, of the same kind, before each of the sorted keys."""
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
    """Return JSON texts in the binary format of jsonb: a version byte, then the text."""
    return pc.binary_join_element_wise("\x01", texts.combine_chunks(), "").cast(pa.binary())
