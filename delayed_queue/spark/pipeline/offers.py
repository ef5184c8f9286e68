"""Rows into the queue: when they fall due, the data source, and what became of them."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.types import StructType

from delayed_queue.exceptions import DelayedQueueError, InvalidConfiguration
from delayed_queue.messages import (
    MAX_MILLISECONDS,
    MILLISECOND,
    check_schedule,
    to_milliseconds,
)
from delayed_queue.spark.database import Link
from delayed_queue.spark.pipeline.blocks import Unpacking
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.settings import tasks_of
from delayed_queue.spark.source.ledger import OFFER, Counts, JobKey, open_job
from delayed_queue.spark.source.ledger import counts as counts_of
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.source.writer import OfferWriter, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Spread:
    """The due times from ``start_ms`` or now on, over a time span or at a rate.

    A message's time depends on its ordinal in the input, which counts bad and repeated records. So
    the same input gets the same times, and no second gets more than the rate.
    """

    start_ms: int | None = None
    over_ms: int | None = None
    per_second: float | None = None

    @classmethod
    def of(
        cls,
        start: datetime | None = None,
        over: timedelta | None = None,
        per_second: float | None = None,
    ) -> Spread | None:
        """Check the options; return None if none is set."""
        if start is None and over is None and per_second is None:
            return None
        if over is not None and per_second is not None:
            raise InvalidConfiguration("--over and --rate exclude each other: pass one of them.")
        if per_second is not None and not 0 < per_second <= 1_000_000:
            raise InvalidConfiguration("--rate is from above 0 to 1,000,000 messages a second.")
        return cls(check_schedule(start), None if over is None else over // MILLISECOND, per_second)

    def step(self, total: int) -> float:
        """Return the milliseconds between two messages of that many."""
        if self.per_second is not None:
            step = 1000 / self.per_second
        else:
            step = (self.over_ms or 0) / max(total, 1)
        begins = to_milliseconds(datetime.now(UTC)) if self.start_ms is None else self.start_ms
        if begins + step * total > MAX_MILLISECONDS:
            raise InvalidConfiguration("Spread like this, the last message leaves the year 9999.")
        return step

    def start_of(self, job: str) -> int:
        """Return the start; without one it is the first start of the job."""
        if self.start_ms is not None:
            return self.start_ms
        with closing(Link(Options())) as link:
            return link.repeat(OFFER, lambda connection: open_job(connection, JobKey(job)))


ROWS_PER_PARTITION: Final = 100_000
# Bytes of files, about as many records.
BYTES_PER_PARTITION: Final = 8 * 1024 * 1024
# An id is the name of a directory, and of a job in the ledger.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")
# The columns of every offer of the pipeline.
_OFFER: Final = StructType().add("kind", "string").add("key", "string").add("payload", "binary")


@dataclass(frozen=True, slots=True)
class Offered:
    """The outcome of each record; ``input`` is the sum of the parts."""

    job: str
    input: int
    created: int = 0
    updated: int = 0
    ignored: int = 0
    duplicates: int = 0
    quarantined: int = 0
    quarantine: str | None = None
    is_dry_run: bool = False
    was_done: bool = False
    refused: str | None = None
    reasons: tuple[tuple[str, int], ...] = ()
    samples: tuple[dict[str, Any], ...] = ()

    @property
    def parts(self) -> dict[str, int]:
        names = ("created", "updated", "ignored", "duplicates", "quarantined")
        return {name: getattr(self, name) for name in names}

    def counted(self, total: int, counts: Counts, *, was_done: bool = False) -> Offered:
        """Add the counts; raise InvalidConfiguration if they are not of ``total`` rows."""
        if counts.offered != total:
            raise InvalidConfiguration(
                f"{total:,} messages were given out and {counts.offered:,} were counted. They may "
                "all be there: run the command again, which changes nothing twice."
            )
        return replace(
            self, was_done=was_done,
            created=counts.created, updated=counts.updated, ignored=counts.ignored,
        )  # fmt: skip

    def lines(self) -> list[str]:
        """Return the report in words."""
        rows = [("records", self.input), *self.parts.items()]
        if self.is_dry_run:
            valid = self.input - self.quarantined - self.duplicates
            rows = [
                ("records", self.input), ("would be offered", valid),
                ("duplicates", self.duplicates), ("would be quarantined", self.quarantined),
            ]  # fmt: skip
        found = aligned(rows)
        if self.reasons:
            found += ["", "records  reason"]
            found += [f"{count:>7,}  {reason}" for reason, count in self.reasons]
        if self.samples:
            found += ["", "for example:"]
            found += map(_sentence, self.samples)
        if self.quarantine:
            found += ["", f"quarantined records: {self.quarantine}"]
        if self.was_done:
            found += ["", "An earlier run had offered all of it; these are its counts."]
        return [*found, f"id: {self.job}"]


def _sentence(sample: Mapping[str, Any]) -> str:
    """Return a bad record in words: file, line, key and reasons."""
    key = "" if sample["key"] is None else f" (key {sample['key'][:40]!r})"
    return f"{sample['file']}:{sample['line']}{key}: {'; '.join(sample['reasons'])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """Options of every command that offers."""

    job: str | None = None
    is_dry_run: bool = False
    partitions: int | None = None

    def __post_init__(self) -> None:
        """Refuse an id that is no name: the quarantine replaces the directory of that name."""
        if self.job is not None and _ID.fullmatch(self.job) is None:
            raise InvalidConfiguration(
                f"--id {self.job[:120]!r}: an id has 1 to 99 letters, digits, dots, dashes and "
                "underscores, and starts with a letter or a digit."
            )


@contextmanager
def telling(console: Console, sentence: Callable[[], str], every: float = 5.0) -> Iterator[None]:
    """Report the progress of the block every few seconds, if the database responds."""
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(every):
            with suppress(DelayedQueueError):
                console.progress(sentence())

    teller = threading.Thread(target=tell, name="delayed-queue-teller", daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


def id_of(stamps: Any, asked: Mapping[str, Any]) -> str:
    """Return the id that the same files and options have again."""
    text = json.dumps([stamps, asked], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def ranked(frame: DataFrame, pieces: int, order: str, key: str = "kind, key") -> DataFrame:
    """Return the rows with their ``rank``, from 1, among those of the same key, in that order.

    By hash and in order: the same input gives the same partitions on any cluster, by which the
    ledger knows chunks that an earlier run has offered. With another number than that run had
    they are offered again, which changes nothing.
    """
    return frame.repartition(pieces, *key.split(", ")).selectExpr(
        "*", f"row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS rank"
    )


@contextmanager
def held(frame: DataFrame) -> Iterator[tuple[DataFrame, int]]:
    """Compute the rows once; yield them, and how many they are."""
    kept = frame.persist()
    try:
        yield kept, kept.count()
    finally:
        kept.unpersist()


class _Offering:
    """Runs in the executors: offers the rows of a partition."""

    def __init__(self, writer: OfferWriter, unpack: Unpacking | None) -> None:
        self._writer = writer
        self._unpack = unpack

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._unpack is None:
            written = self._writer.write(batches)
        else:
            written = self._writer.write(self._unpack(batches), are_checked=True)
        yield pa.RecordBatch.from_pydict({"rows": [written.rows]})


def offer(
    frame: DataFrame, total: int, report: Offered, mode: str, console: Console,
    unpack: Unpacking | None = None,
) -> Offered:  # fmt: skip
    """Offer ``total`` rows of all kinds; a repetition offers only what is missing.

    With ``unpack`` the rows are packs of checked offers. Spark's own writing of a data source
    would start a process for each of its steps.
    """
    job = report.job
    if (found := counts_of(job)).is_complete:
        return report.counted(total, found, was_done=True)
    schema = frame.schema if unpack is None else _OFFER
    options = Options(job=job, mode=mode, connections=tasks_of(frame.sparkSession))
    writer = OfferWriter(options, schema, overwrite=False)
    console.progress(f"offering {total:,} messages …")
    with telling(console, lambda: f"{counts_of(job).offered:,} of {total:,} messages are offered"):
        rows = frame.mapInArrow(_Offering(writer, unpack), "rows bigint").collect()
    writer.commit([Written(row["rows"]) for row in rows])
    return report.counted(total, counts_of(job))
