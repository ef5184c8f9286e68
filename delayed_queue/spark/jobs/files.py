"""Files where Spark keeps them, and what streams and jobs have written to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.leases import Owner, owner_from, refusal
from delayed_queue.spark.settings import is_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def files_on(spark: SparkSession) -> Files:
    """Return the files that the session sees: through its JVM, or by ourselves of one elsewhere."""
    return SharedFiles() if is_elsewhere(spark) else Files(spark)


class Files:
    """The file system that Spark itself uses, so that a path means the same to both."""

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001 - the way to Hadoop's file systems
        self._conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001

    def _at(self, path: str) -> tuple[Any, Any]:
        found = self._jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self._conf), found

    def exists(self, path: str) -> bool:
        system, found = self._at(path)
        return bool(system.exists(found))

    def names(self, directory: str) -> list[str]:
        """Return what is in the directory; nothing where there is none."""
        system, found = self._at(directory)
        if not system.exists(found):
            return []
        return [str(each.getPath().getName()) for each in system.listStatus(found)]

    def touch(self, path: str, text: str = "") -> None:
        """Make a small file, and the directories above it."""
        system, found = self._at(path)
        stream = system.create(found, True)
        try:
            stream.write(bytearray(text, "utf-8"))
        finally:
            stream.close()

    def text(self, path: str) -> str:
        """Return what a small file says."""
        system, found = self._at(path)
        stream = system.open(found)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        """Delete the file or the whole directory, if it is there."""
        system, found = self._at(path)
        system.delete(found, True)

    def rename(self, path: str, target: str) -> None:
        """Move a directory to a name that is not taken; atomic where the file system is."""
        system, found = self._at(path)
        to = self._jvm.org.apache.hadoop.fs.Path(target)
        if system.exists(to):
            raise InvalidConfiguration(f"{target} exists already.")
        system.mkdirs(to.getParent())
        if not system.rename(found, to):
            raise InvalidConfiguration(f"{path} could not be renamed to {target}.")

    def stamps(self, paths: list[str]) -> list[tuple[str, int, int]]:
        """Return name, size and time of change of each file, in order.

        Of names as Spark tells them, with what is special in a URL escaped.
        """
        found = []
        for path in paths:
            at = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(path))
            status = at.getFileSystem(self._conf).getFileStatus(at)
            found.append((path, int(status.getLen()), int(status.getModificationTime())))
        return sorted(found)

    def first_line(self, path: str) -> str | None:
        """Return the first line of a text file, unpacked as Spark does; None of an empty one."""
        at = self._jvm.org.apache.hadoop.fs.Path(self._jvm.java.net.URI(path))
        stream = at.getFileSystem(self._conf).open(at)
        try:
            packing = self._jvm.org.apache.hadoop.io.compress.CompressionCodecFactory(self._conf)
            codec = packing.getCodec(at)
            plain = stream if codec is None else codec.createInputStream(stream)
            reader = self._jvm.java.io.InputStreamReader(plain, "UTF-8")
            line = self._jvm.java.io.BufferedReader(reader).readLine()
        finally:
            stream.close()
        return None if line is None else str(line)

    def sizes(self, path: str) -> list[tuple[str, int]]:
        """Return name and size of each data file below the directory, in order."""
        system, found = self._at(path)
        walk = system.listFiles(found, True)
        sizes = []
        while walk.hasNext():
            status = walk.next()
            sizes.append((str(status.getPath().getName()), int(status.getLen())))
        return sorted(each for each in sizes if each[0].endswith(".parquet"))


class SharedFiles(Files):
    """The same by Arrow, for Spark Connect: where client and server see one storage."""

    def __init__(self) -> None:
        """Nothing is held: a path says where it is."""

    def _at(self, path: str) -> tuple[Any, Any]:
        if "://" in path or path.startswith("file:"):
            return FileSystem.from_uri(path)  # type: ignore[no-any-return]
        return LocalFileSystem(), str(Path(path).absolute())

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type != FileType.NotFound)

    def _info(self, path: str) -> Any:
        system, found = self._at(path)
        return system.get_file_info(found)

    def names(self, directory: str) -> list[str]:
        system, found = self._at(directory)
        wanted = FileSelector(found, allow_not_found=True)
        return [each.base_name for each in system.get_file_info(wanted)]

    def touch(self, path: str, text: str = "") -> None:
        system, found = self._at(path)
        system.create_dir(found.rpartition("/")[0])
        with system.open_output_stream(found) as stream:
            stream.write(text.encode())

    def text(self, path: str) -> str:
        system, found = self._at(path)
        with system.open_input_stream(found) as stream:
            return str(stream.read().decode())

    def delete(self, path: str) -> None:
        system, found = self._at(path)
        kind = self._info(path).type
        if kind == FileType.Directory:
            system.delete_dir(found)
        elif kind == FileType.File:
            system.delete_file(found)

    def rename(self, path: str, target: str) -> None:
        if self.exists(target):
            raise InvalidConfiguration(f"{target} exists already.")
        system, found = self._at(path)
        to = self._at(target)[1]
        system.create_dir(to.rpartition("/")[0])
        system.move(found, to)

    def stamps(self, paths: list[str]) -> list[tuple[str, int, int]]:
        found = ((path, self._info(path)) for path in paths)
        return sorted((path, each.size, (each.mtime_ns or 0) // 1_000_000) for path, each in found)

    def first_line(self, path: str) -> str | None:
        system, found = self._at(path)
        with system.open_input_stream(found, compression="detect") as stream:
            line = TextIOWrapper(stream, "utf-8", "replace").readline()
        return line.rstrip("\r\n") if line else None

    def sizes(self, path: str) -> list[tuple[str, int]]:
        system, found = self._at(path)
        files = system.get_file_info(FileSelector(found, recursive=True))
        sizes = ((each.base_name, each.size) for each in files)
        return sorted(each for each in sizes if each[0].endswith(".parquet"))


@dataclass(frozen=True, slots=True)
class Sums:
    """How many rows there are, and their checksums added up, of which 64 bits are kept.

    In any order: equal where no row is lost, doubled or another.
    """

    rows: int
    checksum: int

    @classmethod
    def of(cls, rows: int, high: int | None, low: int | None) -> Sums:
        """Return what the aggregates of ``sums`` say; there are none of no rows."""
        return cls(rows, _within_64_bits(((high or 0) << 32) + (low or 0)))

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.rows + other.rows, _within_64_bits(self.checksum + other.checksum))


def _within_64_bits(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def checksum_of(columns: Iterable[str]) -> str:
    """Return the expression for the checksum of a row."""
    return f"xxhash64({', '.join(f'`{each}`' for each in columns)})"


def sums(columns: Iterable[str]) -> list[Column]:
    """Return the aggregates of which Sums are made."""
    from pyspark.sql.functions import expr

    # In halves: Spark refuses a sum that has no room, and one of decimals is slow.
    each = checksum_of(columns)
    halves = {"high": f"sum(shiftright({each}, 32))", "low": f"sum({each} & {2**32 - 1}L)"}
    named = {"rows": "count(1)", **halves}
    return [expr(text).alias(name) for name, text in named.items()]


# A text that is empty has no directory of its own but that of NULL, which no kind is.
KIND: Final = "coalesce(kind, '') AS kind"
# Spark reads no file whose name begins so.
_CHECKPOINT: Final = "_delayed_queue-"
_OWNER: Final = "_delayed_queue_of-"
# The log of a file sink, and how the directory of a queue is named.
_LOG: Final = "_spark_metadata"
_OF_KIND: Final = "kind="
_Refused = Callable[[str], InvalidConfiguration]
_GUESSING: Final = "spark.sql.sources.partitionColumnTypeInference.enabled"


def read_lake(spark: SparkSession, *paths: str, **options: str) -> DataFrame:
    """Return the rows; what a directory's name says is the text that was written.

    Of what ``drain`` has written in it, each row once, whatever died meanwhile: each queue has a
    log of its files, which Spark heeds only if it reads that directory alone. Spark would also
    take a kind ``0042`` for the number 42, and offer it to another queue.

    >>> read_lake(spark, "lake").groupBy("kind").count().show()
    """
    with _as_texts(spark):
        # The columns are found here, not when the rows are read.
        logged = {path: _logged(spark, path.rstrip("/")) for path in paths}
        plain = [path for path in paths if not logged[path]]
        frames = [] if not plain else [spark.read.options(**options).parquet(*plain)]
        for each in sorted({each for found in logged.values() for each in found}):
            frames += _of_queue(spark, each, options)
    if not frames:
        raise InvalidConfiguration(f"{', '.join(paths)}: nothing was drained to there yet.")
    return reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)


def _logged(spark: SparkSession, path: str) -> list[str]:
    """Return the directories of queues that drain has written: the path itself, or those in it."""
    files = files_on(spark)
    if path.rpartition("/")[2].startswith(_OF_KIND):
        found = [path]
    else:
        found = [f"{path}/{name}" for name in files.names(path) if name.startswith(_OF_KIND)]
    return found if any(files.exists(f"{each}/{_LOG}") for each in found) else []


def _of_queue(spark: SparkSession, path: str, options: Mapping[str, str]) -> list[DataFrame]:
    """Return the rows of a queue, with the kind that its directory is named by."""
    from pyspark.errors import AnalysisException

    reader = spark.read.options(**options).option("basePath", path.rpartition("/")[0])
    try:
        return [reader.parquet(path)]
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
            "was leased. Give that checkpoint, or another directory; or, if it is lost and "
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
            "Nothing was leased. Give the checkpoint it was written with, or another directory."
        )


def check_root(spark: SparkSession, lake: str) -> None:
    """Raise InvalidConfiguration where a stream has written the directory as a whole.

    Whoever reads it finds the log of that stream there, and no file that is not in it.
    """
    if files_on(spark).exists(f"{lake.rstrip('/')}/{_LOG}"):
        raise InvalidConfiguration(
            f"{lake} was written by another stream, and its readers would not see what is written "
            "by queue below it. Nothing was leased. Give another directory."
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
