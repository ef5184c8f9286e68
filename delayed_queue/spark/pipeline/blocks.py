"""Blocks of files, checked by tasks: packs of offers, bad records, and a summary of each block.

Spark has no line numbers: it cuts files into blocks and reads them in parallel. So every record has
its block and its place in the block. The numbers of lines of the blocks before it add up to its
line in the file, and to its ordinal in the whole input.

A pack is one row of Spark with thousands of offers, so that Spark caches and moves them as bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.handlers import storable
from delayed_queue.spark.pipeline.lines import Read, Reader
from delayed_queue.spark.pipeline.records import Checker, dicts_of
from delayed_queue.spark.source.rules import OFFERS, one_array, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Columns of all rows; a pack is at the place of its first record.
CHECKED: Final = pa.schema(
    {
        "file": pa.string(), "block": pa.int64(), "place": pa.int64(),
        # Set in packs: the offers, and digests of their kinds and keys.
        "offers": pa.binary(), "digests": pa.binary(),
        # Set in bad records.
        "key": pa.string(), "reasons": pa.list_(pa.string()), "record": pa.string(),
        # Set in summaries of blocks.
        "lines": pa.int64(), "good": pa.int64(), "bad": pa.int64(), "is_open": pa.bool_(),
    }
)  # fmt: skip
_PACKED: Final = OFFERS.append(pa.field("place", pa.int64()))
DIGEST: Final = np.dtype(np.uint64)
# Lines that are read together; one that is no record of CSV has all of them read one by one.
_LINES: Final = 1_000
# A pack is closed above one of these: about a chunk of the ledger, and the memory of a row.
_PACK_ROWS: Final = 19_000
_PACK_BYTES: Final = 8 * 1024 * 1024


class Blocks:
    """Checks the blocks of one partition, one after the other."""

    def __init__(self, checker: Checker, reader: Reader | None) -> None:
        self._checker = checker
        # None: the rows are records.
        self._reader = reader
        self._at = ("", 0)
        self._lines = 0
        self._counts = Counter[str]()
        self._pack: list[pa.Table] = []
        # Rows of bad records.
        self._bad: list[dict[str, Any]] = []

    def take(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for at, run in _runs(batch):
            if at != self._at:
                yield from self.end()
                self._at = at
            yield from self._records(run) if self._reader is None else self._text(run)

    def _records(self, run: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Check the rows of Parquet: a file's row groups may be read by several tasks."""
        *_, places = run.columns
        self._lines = places[-1].as_py() + 1
        records = run.select(run.schema.names[:-3])
        yield from self._checked(Read(places.to_pylist(), records))

    def _text(self, run: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        at, lines = 0, run.column(0).to_pylist()
        while at < len(lines):
            # The first line of a file has its header.
            some = lines[at : at + (_LINES if self._lines else 1)]
            is_start = (self._at[1], self._lines) == (0, 0)
            read = self._reader.read(self._lines, some, is_start=is_start)  # type: ignore[union-attr]
            at, self._lines = at + len(some), self._lines + len(some)
            yield from self._checked(read)

    def end(self) -> Iterator[pa.RecordBatch]:
        """End the block: yield its open records, its last pack and its summary."""
        if not self._lines:
            return
        is_open = self._reader is not None and self._reader.is_open
        if is_open:
            yield from self._checked(self._reader.end())  # type: ignore[union-attr]
        yield from self._packed()
        counts = {"good": self._counts["good"], "bad": self._counts["bad"]}
        yield self._row(lines=self._lines, is_open=is_open, **counts)
        self._lines, self._counts = 0, Counter()

    def _checked(self, read: Read) -> Iterator[pa.RecordBatch]:
        """Keep the records that are offers for a pack; keep others with their reasons."""
        for place, each in read.wrong:
            self._refuse(place, [each.reason], each.text)
        if len(read.places):
            offers, reasons = self._checker.check(read.records)
            places = pa.array(read.places, pa.int64())
            offers = offers.append_column(_PACKED.field("place"), [places])
            if reasons:
                offers = offers.filter(pa.array([row not in reasons for row in range(len(offers))]))
                self._refuse_records(read, reasons)
            self._counts["good"] += len(offers)
            self._pack.append(offers)
        is_full = sum(map(len, self._pack)) > _PACK_ROWS or len(self._bad) > _LINES
        if is_full or sum(map(_size, self._pack)) > _PACK_BYTES:
            yield from self._packed()

    def _refuse_records(self, read: Read, reasons: Mapping[int, list[str]]) -> None:
        bad, records = sorted(reasons), read.records
        is_list = isinstance(records, list)
        refused = [records[row] for row in bad] if is_list else dicts_of(records.take(bad))
        for row, record in zip(bad, refused, strict=True):
            # Bad texts may not be storable either: they hold a lone surrogate, or NUL.
            wrong, key = list(map(storable, reasons[row])), self._checker.key_of(record)
            self._refuse(read.places[row], wrong, _as_text(record), key)

    def _refuse(self, place: int, reasons: list[str], record: str, key: str | None = None) -> None:
        self._counts["bad"] += 1
        file, block = self._at
        row = {"file": file, "block": block, "place": place}
        self._bad.append({**row, "key": key, "reasons": reasons, "record": record})

    def _packed(self) -> Iterator[pa.RecordBatch]:
        """Yield what was kept."""
        if self._bad:
            yield pa.RecordBatch.from_pylist(self._bad, schema=CHECKED)
        if sum(map(len, self._pack)):
            offers = pa.concat_tables(self._pack).combine_chunks()
            place, digests = offers["place"][0].as_py(), digests_of(offers).tobytes()
            yield self._row(place=place, offers=packed(offers), digests=digests)
        self._pack, self._bad = [], []

    def _row(self, **values: Any) -> pa.RecordBatch:
        file, block = self._at
        row = {"file": file, "block": block, **values}
        return pa.RecordBatch.from_pylist([row], schema=CHECKED)


def _runs(batch: pa.RecordBatch) -> Iterator[tuple[tuple[str, int], pa.RecordBatch]]:
    """Yield the file, the block and the rows of each of both, in order."""
    files, blocks = (batch.column(name) for name in ("__file", "__block"))
    ends = {end for each in (files, blocks) for end in _ends(each)}
    for start, end in pairwise(sorted({0, *ends})):
        yield (files[start].as_py(), blocks[start].as_py()), batch.slice(start, end - start)


def _ends(column: pa.Array) -> list[int]:
    return pc.run_end_encode(column).run_ends.to_pylist()  # type: ignore[no-any-return]


def _size(offers: pa.Table) -> int:
    return int(offers.nbytes)


def _as_text(record: Mapping[str, Any]) -> str:
    text = json.dumps(plain(dict(record)), ensure_ascii=False, default=repr)
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def packed(offers: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, offers.schema) as stream:
        stream.write_table(offers)
    return bytes(sink.getvalue())


def unpacked(offers: pa.Scalar) -> pa.Table:
    return pa.ipc.open_stream(offers.as_buffer()).read_all()


def ids_of(offers: pa.Table) -> pa.Array:
    """Return kind and key of each offer; no kind and no key has a NUL."""
    kinds, keys = (one_array(offers[name]) for name in ("kind", "key"))
    return pc.binary_join_element_wise(kinds, keys, "\x00")


def digests_of(offers: pa.Table) -> Any:
    """Return a number of 64 bits for each id: equal ones have equal numbers, and few others."""
    ids = ids_of(offers).cast(pa.binary()).to_pylist()
    return np.array([crc32(each) << 32 | crc32(each[::-1]) for each in ids], DIGEST)


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Makes batches of offers of packs; spreads those without a time of their own."""

    # The first ordinal of each block of each file.
    ordinals: Mapping[tuple[str, int], int]
    start_ms: int | None = None
    # Milliseconds between two records of the input.
    step: float = 0

    def __call__(self, packs: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the offers of ``offers``; leave out those at the positions ``repeated``."""
        for batch in packs:
            for row in range(batch.num_rows):
                file, block = batch["file"][row].as_py(), batch["block"][row].as_py()
                offers = self._spread(unpacked(batch["offers"][row]), self.ordinals[file, block])
                if repeated := batch["repeated"][row].as_py():
                    is_left = np.ones(len(offers), bool)
                    is_left[repeated] = False
                    offers = offers.filter(pa.array(is_left))
                yield from offers.select(OFFERS.names).combine_chunks().to_batches()

    def _spread(self, offers: pa.Table, first_ordinal: int) -> pa.Table:
        if self.start_ms is None:
            return offers
        ordinals = pc.add(offers["place"], first_ordinal).cast(pa.float64())
        after = pc.trunc(pc.multiply(ordinals, self.step)).cast(pa.int64())
        is_free = pc.and_(pc.is_null(offers["schedule_at"]), pc.is_null(offers["delay"]))
        times = pc.if_else(is_free, pc.add(after, self.start_ms), offers["schedule_at"])
        return offers.set_column(offers.schema.get_field_index("schedule_at"), "schedule_at", times)


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch of a file: how many lines, good and bad records it had, and what came before."""

    file: str
    block: int
    lines: int
    good: int
    bad: int
    is_open: bool = False
    first_line: int = 0
    first_ordinal: int = 0


def numbered(blocks: list[Block]) -> list[Block]:
    """Return the blocks in order, each with the sums of the lines before it."""
    found: list[Block] = []
    ordinal, line, file = 0, 0, ""
    for each in sorted(blocks, key=lambda one: (one.file, one.block)):
        line = line if each.file == file else 0
        file = each.file
        found.append(replace(each, first_line=line, first_ordinal=ordinal))
        line += each.lines
        ordinal += each.lines
    return found


def blocks_of(checked: DataFrame) -> tuple[list[Block], int]:
    """Return all blocks with their counts, in order, and the most good rows of a partition.

    This is what reads the input.
    """
    names = ("file", "block", "lines", "good", "bad", "is_open")
    ends = checked.where("lines IS NOT NULL").selectExpr(*names, "spark_partition_id() AS part")
    blocks: dict[tuple[str, int], Block] = {}
    of_parts = Counter[int]()
    # Several tasks may have read the row groups of one file.
    for file, block, lines, good, bad, is_open, part in ends.collect():
        of_parts[part] += good
        known = blocks.get((file, block), Block(file, block, 0, 0, 0))
        blocks[file, block] = replace(
            known, lines=max(known.lines, lines), good=known.good + good, bad=known.bad + bad,
            is_open=is_open,
        )  # fmt: skip
    return numbered(list(blocks.values())), max(of_parts.values(), default=0)


def is_cut(blocks: list[Block]) -> bool:
    """Return whether a record continues in the next block of its file."""
    return any(one.is_open and one.file == other.file for one, other in pairwise(blocks))


def with_places(spark: SparkSession, rows: DataFrame, blocks: list[Block]) -> DataFrame:
    """Return the rows with the first line and the first ordinal of their blocks."""
    from pyspark.sql.functions import broadcast

    values = [(each.file, each.block, each.first_line, each.first_ordinal) for each in blocks]
    schema = "file string, block bigint, first_line bigint, first_ordinal bigint"
    return rows.join(broadcast(spark.createDataFrame(values, schema)), ["file", "block"])
