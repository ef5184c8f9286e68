"""Files that streams and jobs have written: directories named by values, and the log of a sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.jobs.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A text that is empty has no directory of its own but that of NULL, which no kind is.
KIND: Final = "coalesce(kind, '') AS kind"
_GUESSING: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


def read_lake(spark: SparkSession, *paths: str, **options: str) -> DataFrame:
    """Return the rows; what a directory's name says is the text that was written.

    Spark would take a kind ``0042`` for the number 42, and offer it to another queue.
    """
    with _as_texts(spark):
        # The columns are found here, not when the rows are read.
        return spark.read.options(**options).parquet(*paths)


def check_lake(spark: SparkSession, lake: str, checkpoint: str) -> None:
    """Raise InvalidConfiguration where a file sink would skip the batches of this checkpoint.

    Spark numbers batches by the checkpoint, and a file sink takes a number that its directory has
    seen for a batch that was written already: it writes nothing, and the messages would be
    acknowledged. Call it before the stream starts.
    """
    files = Files(spark)
    written = _last_batch(files, f"{lake.rstrip('/')}/_spark_metadata")
    known = _last_batch(files, f"{checkpoint.rstrip('/')}/offsets")
    # The last one of both may be the same: it was written, and not yet noted as done.
    if written > known:
        raise InvalidConfiguration(
            f"{lake} was written under another checkpoint than {checkpoint}, or that was deleted: "
            f"Spark would skip the batches that it takes for written, up to number {written}. "
            "Nothing was leased. Give the checkpoint it was written with, or another directory."
        )


def _last_batch(files: Files, log: str) -> int:
    # Now and then a sink makes one file of many, with a name like "9.compact".
    numbers = (name.partition(".")[0] for name in files.names(log))
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


@contextmanager
def _as_texts(spark: SparkSession) -> Iterator[None]:
    """Have names of directories read as they are; the session may be one that was there before."""
    before = str(spark.conf.get(_GUESSING))
    spark.conf.set(_GUESSING, "false")
    try:
        yield
    finally:
        spark.conf.set(_GUESSING, before)
