"""What streams and jobs have written: whose a lake is, how it is read, what the dead left in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.files import Files, files_on
from delayed_queue.spark.source.leases import Owner, owner_from, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

# A text that is empty has no directory of its own but that of NULL, which no kind is.
KIND: Final = "coalesce(kind, '') AS kind"
# Spark reads no file whose name begins so.
_CHECKPOINT: Final = "_delayed_queue-"
_OWNER: Final = "_delayed_queue_of-"
# The log of a file sink, and how the directory of a queue is named.
_LOG: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
_IN_LOG: Final = re.compile(rf"{_LOG}/\d")
_OF_KIND: Final = "kind="
_Refused = Callable[[str], InvalidConfiguration]
_GUESSING: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


PARQUET: Final = "parquet"
# Those of Spark that write files: a stream numbers them by the batches of its checkpoint.
FILES: Final = frozenset({"avro", "csv", "json", "orc", PARQUET, "text", "xml"})
_LINES: Final = {"header": "true", "escape": '"'}
# Of texts only what is written is read again: names, line breaks, spaces, columns without a value.
WRITTEN_AS: Final[Mapping[str, Mapping[str, str]]] = {
    "csv": {**_LINES, "ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"},
    "json": {"ignoreNullFields": "false"},
}
READ_AS: Final[Mapping[str, Mapping[str, str]]] = {"csv": {**_LINES, "multiLine": "true"}}


def read_lake(spark: SparkSession, *paths: str, form: str = PARQUET, **options: str) -> DataFrame:
    """Return the rows; what a directory's name says is the text that was written.

    ``form`` is the format of the files, or of the tables: one of Spark's.

    Of what ``drain`` has written in it, each row once, whatever died meanwhile: each queue has a
    log of its files, which Spark heeds only if it reads that directory alone. Spark would also
    take a kind ``0042`` for the number 42, and offer it to another queue.

    >>> read_lake(spark, "lake").groupBy("kind").count().show()
    """
    with _as_texts(spark):
        # The columns are found here, not when the rows are read.
        files = files_on(spark)
        logged = {path: _logged(files, path.rstrip("/")) for path in paths}
        plain = [path for path in paths if not logged[path]]
        reader = spark.read.format(form).options(**{**READ_AS.get(form, {}), **options})
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
        # Its drain has begun, and written nothing yet.
        if error.getCondition() != "UNABLE_TO_INFER_SCHEMA":
            raise
        return []


# What Spark escapes in the names of directories, and characters below a space.
_ESCAPED: Final = frozenset("\"#%'*/:=?\\{[]^\x7f")


def directory_of(kind: str) -> str:
    """Return the name of the kind's directory as Spark reads it, as in ``kind=orders|json``."""
    escaped = (f"%{ord(each):02X}" if each in _ESCAPED or each < " " else each for each in kind)
    return _OF_KIND + "".join(escaped)


def check_owner(spark: SparkSession, directory: str, owner: Owner) -> None:
    """Raise InvalidConfiguration if the directory was noted as another queue's."""
    files, directory = files_on(spark), directory.rstrip("/")
    _is_noted(files, directory, _OWNER, {_note_of(owner)}, _refused(files, directory, owner))


def claim_for(spark: SparkSession, directory: str, owner: Owner) -> None:
    """Note in the directory whose it is; raise InvalidConfiguration if it is another queue's.

    For a checkpoint, before each start of the stream, and for what it writes.
    """
    files, directory = files_on(spark), directory.rstrip("/")
    refused = _refused(files, directory, owner)
    _note(files, directory, _OWNER, {_note_of(owner)}, owner.text, refused)


def _note_of(owner: Owner) -> str:
    return f"{_OWNER}{owner.digest}"


def _refused(files: Files, directory: str, owner: Owner) -> _Refused:
    def refused(other: str) -> InvalidConfiguration:
        theirs = owner_from(files.text(f"{directory}/{other}"))
        return refusal(directory, theirs, owner, other)

    return refused


def claim_lake(spark: SparkSession, lake: str, checkpoint: str) -> None:
    """Note in the directory that it is this checkpoint's; raise InvalidConfiguration if it is not.

    Spark numbers batches by the checkpoint, and a file sink takes a number that its directory has
    seen for a batch that was written already: it writes nothing, and the messages would be
    acknowledged. Call it before each start of the stream; a checkpoint that is moved keeps its
    directory. Of two that start at the same moment one at most is let in, where a file that is
    made is listed at once.
    """
    files = files_on(spark)
    lake, checkpoint = lake.rstrip("/"), checkpoint.rstrip("/")
    check_numbers(spark, lake, checkpoint)

    def refused(other: str) -> InvalidConfiguration:
        return InvalidConfiguration(
            f"{lake} belongs to another checkpoint, which has the file {other} too; nothing "
            "was leased. Pass that checkpoint, or another directory; or, if it is lost and "
            "nothing was written yet, delete the file."
        )

    _note(files, lake, _CHECKPOINT, _notes_of(files, checkpoint), "", refused)


def check_numbers(spark: SparkSession, lake: str, checkpoint: str) -> None:
    """Raise InvalidConfiguration where the directory has batches that the checkpoint has not."""
    files = files_on(spark)
    written = _last_batch(files, f"{lake.rstrip('/')}/{_LOG}")
    known = _last_batch(files, f"{checkpoint.rstrip('/')}/offsets")
    # The last one of both may be the same: it was written, and not yet noted as done.
    if written > known:
        raise InvalidConfiguration(
            f"{lake} was written under another checkpoint than {checkpoint}, or that was deleted: "
            f"Spark would skip the batches that it takes for written, up to number {written}. "
            "Nothing was leased. Pass the checkpoint it was written with, or another directory."
        )


def check_root(spark: SparkSession, lake: str) -> None:
    """Raise InvalidConfiguration where a stream has written the directory as a whole.

    Whoever reads it finds the log of that stream there, and no file that is not in it.
    """
    if files_on(spark).exists(f"{lake.rstrip('/')}/{_LOG}"):
        raise InvalidConfiguration(
            f"{lake} was written by another stream, and its readers would not see what is written "
            "by queue below it. Nothing was leased. Pass another directory."
        )


def _notes_of(files: Files, checkpoint: str) -> set[str]:
    """Return the names of the checkpoint's notes: files in it, so that both move together.

    One, or several where two processes have begun with it at once.
    """
    if found := _notes(files, checkpoint, _CHECKPOINT):
        return found
    files.touch(f"{checkpoint}/{_CHECKPOINT}{uuid4().hex}")
    return _notes(files, checkpoint, _CHECKPOINT)


def _note(
    files: Files, directory: str, prefix: str, ours: set[str], text: str, refused: _Refused
) -> None:
    """Leave a file of one of these names in the directory; raise if there is another's."""
    # Whoever comes later sees it, and a note that is old is never taken away.
    if _is_noted(files, directory, prefix, ours, refused):
        return
    note = f"{directory}/{min(ours)}"
    # First the note, then a look: of two, the one that looks later sees both.
    files.touch(note, text)
    try:
        _is_noted(files, directory, prefix, ours, refused)
    except InvalidConfiguration:
        files.delete(note)
        raise


def _is_noted(files: Files, directory: str, prefix: str, ours: set[str], refused: _Refused) -> bool:
    """Return whether the directory is noted as ours; raise what refuses it if as another's."""
    found = _notes(files, directory, prefix)
    if others := found - ours:
        raise refused(min(others))
    return bool(found)


def _notes(files: Files, directory: str, prefix: str) -> set[str]:
    return {name for name in files.names(directory) if name.startswith(prefix)}


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


# Orphans


@dataclass(frozen=True, slots=True)
class Orphans:
    """Files beside those that a stream has written: of writers that died, and such as may not be.

    ``undecided`` are newer than what was committed last: of a batch that is under way, or has died
    and is written again when its stream goes on.
    """

    paths: tuple[str, ...] = ()
    size: int = 0
    undecided: tuple[str, ...] = ()


def orphans_of(files: Files, lake: str) -> Orphans:
    """Return the files in the lake that its readers count only if they know nothing of Spark's log.

    A stream writes one batch after the other, and begins none before the one before it is in the
    log. So a file that is in no batch, and was changed before the log was, is one of no batch to
    come. Times are those of the storage.
    """
    lake = lake.rstrip("/")
    found = [_orphans_in(files, each) for each in _logged(files, lake)]
    return Orphans(
        tuple(path for each in found for path in each.paths),
        sum(each.size for each in found),
        tuple(path for each in found for path in each.undecided),
    )


def _orphans_in(files: Files, directory: str) -> Orphans:
    # In this order: what is committed meanwhile is in the log, and no orphan.
    there = files.below(directory)
    counted = _written(files, f"{directory}/{_LOG}")
    # Committed ones: what is yet to get its name is later than the files of its batch.
    log = [each.changed_at for each in there if _IN_LOG.match(each.path)]
    lost = [each for each in there if each.is_data and each.path.rpartition("/")[2] not in counted]
    dead = [each for each in lost if each.changed_at < max(log, default=0)]
    return Orphans(
        tuple(f"{directory}/{each.path}" for each in dead),
        sum(each.size for each in dead),
        tuple(f"{directory}/{each.path}" for each in lost if each not in dead),
    )


def _written(files: Files, log: str) -> set[str]:
    """Return the names of all files of the log, each of which there is once.

    By their names, not their places: a lake that was moved has the same names.
    """
    numbers = {name: int(name.partition(".")[0]) for name in files.names(log) if name[0].isdigit()}
    compact = max((n for name, n in numbers.items() if name.endswith(_COMPACT)), default=-1)
    lines = (
        line
        for name, number in numbers.items()
        if number > compact or name == f"{compact}{_COMPACT}"
        for line in files.text(f"{log}/{name}").splitlines()
    )
    return {str(json.loads(each)["path"]).rpartition("/")[2] for each in lines if each[:1] == "{"}
