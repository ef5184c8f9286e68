"""The directories that streams write: their checkpoints, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.files import Files, files_on
from delayed_queue.spark.pipeline.session import set_to

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# Spark writes an empty text into the directory of NULL, and no kind is NULL.
KIND: Final = "coalesce(kind, '') AS kind"
# Files that bind a directory to a checkpoint. Spark skips names that start with an underscore.
_NOTE: Final = "_delayed_queue-"
# The log of a file sink, and how the directory of a queue is named.
_LOG: Final = "_spark_metadata"
_OF_KIND: Final = "kind="
_GUESSING: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


# Those of Spark that write files: a stream numbers them by the batches of its checkpoint.
FILES: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
# Names, line breaks, spaces and columns without a value are written, so that all can be read again.
WRITTEN_AS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {
        "header": "true", "escape": '"',
        "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false",
    },
    "json": {"ignoreNullFields": "false"},
}  # fmt: skip


def read_lake(spark: SparkSession, *paths: str, **options: str) -> DataFrame:
    """Return the rows of Parquet; names of directories are texts, as they were written.

    Each row that ``drain`` has written is returned once, also after a crash: each queue has a log
    of its files, which Spark follows only if it reads that directory alone. Spark itself would read
    the kind ``0042`` as the number 42.

    >>> read_lake(spark, "lake").groupBy("kind").count().show()
    """
    with set_to(spark, {_GUESSING: "false"}):
        # The columns are found here, not when the rows are read.
        files = files_on(spark)
        logged = {path: _logged(files, path.rstrip("/")) for path in paths}
        plain = [path for path in paths if not logged[path]]
        reader = spark.read.format("parquet").options(**options)
        frames = [reader.load(path) for path in plain]
        for each in sorted({each for found in logged.values() for each in found}):
            frames += _of_queue(reader, each)
    if not frames:
        raise InvalidConfiguration(f"{', '.join(paths)}: nothing was drained to there yet.")
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _logged(files: Files, path: str) -> list[str]:
    """Return the directories of queues that drain has written: the path itself, or those in it."""
    if path.rpartition("/")[2].startswith(_OF_KIND):
        found = [path]
    else:
        found = [f"{path}/{name}" for name in files.names(path) if name.startswith(_OF_KIND)]
    return found if any(files.exists(f"{each}/{_LOG}") for each in found) else []


def _of_queue(reader: DataFrameReader, path: str) -> list[DataFrame]:
    """Return the rows of a queue, with the kind that its directory is named by."""
    from pyspark.errors import AnalysisException

    try:
        return [reader.option("basePath", path.rpartition("/")[0]).load(path)]
    except AnalysisException as error:
        # Its drain has started, and has written nothing yet.
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        return []


# Characters that Spark escapes in names of directories, besides those below a space.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f")


def directory_of(kind: str) -> str:
    """Return the name of the kind's directory as Spark reads it, as in ``kind=orders|json``."""
    escaped = (f"%{ord(each):02X}" if each in _ESCAPED or each < " " else each for each in kind)
    return _OF_KIND + "".join(escaped)


def claim_lake(spark: SparkSession, lake: str, checkpoint: str) -> None:
    """Bind the directory to this checkpoint; raise InvalidConfiguration if it has another one.

    Spark numbers batches by the checkpoint. A file sink skips a number that its directory has, as a
    batch that is written; its messages would be acknowledged. Call this before each start of the
    stream. A checkpoint that is moved keeps its directory. If two streams start at the same moment,
    at most one is accepted, if the storage lists a new file at once.
    """
    files = files_on(spark)
    lake, checkpoint = lake.rstrip("/"), checkpoint.rstrip("/")
    _check_numbers(files, lake, checkpoint)
    # Files in the checkpoint, so that both move together: one, or several where two streams have
    # started with it at once.
    if not _notes(files, checkpoint):
        files.touch(f"{checkpoint}/{_NOTE}{uuid4().hex}")
    ours, found = _notes(files, checkpoint), _notes(files, lake)
    if not found:
        # Write first, then check: of two streams, the later one finds both notes.
        files.touch(f"{lake}/{min(ours)}")
        found = _notes(files, lake)
        if found - ours:
            files.delete(f"{lake}/{min(ours)}")
    if others := found - ours:
        raise InvalidConfiguration(
            f"{lake} belongs to another checkpoint, which has the file {min(others)} too; nothing "
            "was leased. Pass that checkpoint, or another directory; or, if it is lost and "
            "nothing was written yet, delete the file."
        )


def _check_numbers(files: Files, lake: str, checkpoint: str) -> None:
    """Raise InvalidConfiguration if the directory has batches that the checkpoint lacks."""
    written = _last_batch(files, f"{lake}/{_LOG}")
    known = _last_batch(files, f"{checkpoint}/offsets")
    # Both may have the same last batch: one that was written, but not yet committed.
    if written > known:
        raise InvalidConfiguration(
            f"{lake} was written under another checkpoint than {checkpoint}, or that was deleted: "
            f"Spark would skip the batches that it takes for written, up to number {written}. "
            "Nothing was leased. Pass the checkpoint it was written with, or another directory."
        )


def check_root(spark: SparkSession, lake: str) -> None:
    """Raise InvalidConfiguration if a stream has written the directory as a whole.

    Readers would follow the log of that stream, and skip all other files.
    """
    if files_on(spark).exists(f"{lake.rstrip('/')}/{_LOG}"):
        raise InvalidConfiguration(
            f"{lake} was written by another stream, and its readers would not see what is written "
            "by queue below it. Nothing was leased. Pass another directory."
        )


def _notes(files: Files, directory: str) -> set[str]:
    return {name for name in files.names(directory) if name.startswith(_NOTE)}


def _last_batch(files: Files, log: str) -> int:
    # A sink compacts its log now and then, into a file such as "9.compact".
    numbers = (name.partition(".")[0] for name in files.names(log))
    return max((int(number) for number in numbers if number.isdigit()), default=-1)
