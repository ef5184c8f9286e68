"""Files that streams and jobs have written: directories named by values, and the log of a sink."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.jobs.files import Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A text that is empty has no directory of its own but that of NULL, which no kind is.
KIND: Final = "coalesce(kind, '') AS kind"
# Spark reads no file whose name begins so.
_NOTE: Final = "_delayed_queue-"
_GUESSING: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


def read_lake(spark: SparkSession, *paths: str, **options: str) -> DataFrame:
    """Return the rows; what a directory's name says is the text that was written.

    Spark would take a kind ``0042`` for the number 42, and offer it to another queue.
    """
    with _as_texts(spark):
        # The columns are found here, not when the rows are read.
        return spark.read.options(**options).parquet(*paths)


def claim_lake(spark: SparkSession, lake: str, checkpoint: str) -> None:
    """Note in the directory that it is this checkpoint's; raise InvalidConfiguration if it is not.

    Spark numbers batches by the checkpoint, and a file sink takes a number that its directory has
    seen for a batch that was written already: it writes nothing, and the messages would be
    acknowledged. Call it before each start of the stream; a checkpoint that is moved keeps its
    directory. Of two that start at the same moment one at most is let in, where a file that is
    made is listed at once.
    """
    files = Files(spark)
    lake, checkpoint = lake.rstrip("/"), checkpoint.rstrip("/")
    check_numbers(spark, lake, checkpoint)
    ours = _notes_of(files, checkpoint)
    # Whoever comes later sees it, and a note that is old is never taken away.
    if _is_noted(files, lake, ours):
        return
    note = f"{lake}/{min(ours)}"
    # First the note, then a look: of two, the one that looks later sees both.
    files.touch(note)
    try:
        _is_noted(files, lake, ours)
    except InvalidConfiguration:
        files.delete(note)
        raise


def check_numbers(spark: SparkSession, lake: str, checkpoint: str) -> None:
    """Raise InvalidConfiguration where the directory has batches that the checkpoint has not."""
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


def _notes_of(files: Files, checkpoint: str) -> set[str]:
    """Return the names of the checkpoint's notes: files in it, so that both move together.

    One, or several where two processes have begun with it at once.
    """
    if found := _notes(files, checkpoint):
        return found
    files.touch(f"{checkpoint}/{_NOTE}{uuid4().hex}")
    return _notes(files, checkpoint)


def _is_noted(files: Files, lake: str, ours: set[str]) -> bool:
    """Return whether the directory is noted as ours; raise InvalidConfiguration if as another's."""
    found = _notes(files, lake)
    if others := found - ours:
        raise InvalidConfiguration(
            f"{lake} belongs to another checkpoint, which has the file {min(others)} too; nothing "
            "was leased. Give that checkpoint, or another directory; or, if it is lost and "
            "nothing was written yet, delete the file."
        )
    return bool(found)


def _notes(files: Files, directory: str) -> set[str]:
    return {name for name in files.names(directory) if name.startswith(_NOTE)}


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
