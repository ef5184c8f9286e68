"""Rows into the queue, through the data source, and what became of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import Counts
from delayed_queue.spark.ledger import counts as counts_of
from delayed_queue.spark.links import Link
from delayed_queue.spark.offering import OFFER
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.offering import OPEN_JOB

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROWS_PER_PARTITION: Final = 100_000
# It becomes a directory's name, and with a kind the name of a job in the ledger.
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,98}")
# What the frame must have; a source's own columns are made of them.
COLUMNS: Final = ("kind", "key", "payload", "schedule_ms", "delay_ms", "headers")
_WRITTEN: Final = (
    "key",
    "payload",
    "timestamp_millis(schedule_ms) AS schedule_at",
    "delay_ms AS delay",
    "headers",
)


@dataclass(frozen=True, slots=True)
class Offer:
    """Under which id the ledger counts, and whether what is stored already is replaced."""

    job: str
    mode: str = "offer"


@dataclass(frozen=True, slots=True)
class Offered:
    """What the ledger says of the id; ``was_done`` when an earlier run had done it all."""

    counts: Counts
    was_done: bool


def check_id(job: str | None) -> None:
    """Refuse an id that is no name: what is put aside replaces the directory of that name."""
    if job is not None and _ID.fullmatch(job) is None:
        raise InvalidConfiguration(
            f"--id {job[:120]!r}: an id has 1 to 99 letters, digits, dots, dashes and underscores, "
            "and begins with a letter or a digit."
        )


def began_at(job: str) -> int:
    """Return when the job began, the first time: from then its messages are spread."""
    link = Link(Options())
    try:
        rows = link.repeat(
            OFFER, lambda session: session.fetch(OPEN_JOB, {"job": job, "now": None})
        )
    finally:
        link.close()
    return int(rows[0][0])


def offer(frame: DataFrame, how: Offer) -> Offered:
    """Offer the rows, kind by kind; repeated with the same id it offers only what is missing."""
    kinds = sorted(row[0] for row in frame.select("kind").distinct().collect())
    found = [_offer_kind(frame, kind, how, alone=len(kinds) == 1) for kind in kinds]
    total = sum((each.counts for each in found), Counts())
    return Offered(total, bool(found) and all(each.was_done for each in found))


def _offer_kind(frame: DataFrame, kind: str, how: Offer, *, alone: bool) -> Offered:
    from pyspark.sql.functions import col

    job = how.job if alone else f"{how.job} {kind}"
    was_done = counts_of(job).is_complete
    writer = (
        frame.where(col("kind") == kind)
        .selectExpr(*_WRITTEN)
        .write.format("delayed_queue")
        .option("kind", kind)
        .option("job", job)
        .option("mode", how.mode)
        .option("onFinishedJob", "skip")
    )
    writer.mode("append").save()
    counted = counts_of(job)
    return Offered(Counts(counted.created, counted.updated, counted.ignored), was_done)
