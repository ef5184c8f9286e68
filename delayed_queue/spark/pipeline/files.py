"""Files where Spark keeps them, and the sums by which rows are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.settings import is_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession


_HIDDEN: Final = ("_", ".")


class Stamped(NamedTuple):
    """A file below a directory: its path there, its size, and when it was changed, in ms."""

    path: str
    size: int
    changed_at: int

    @property
    def is_data(self) -> bool:
        """Whether Spark takes it for data: nothing on its way is hidden."""
        return not any(each.startswith(_HIDDEN) for each in self.path.split("/"))


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
        waiting, files = [found], []
        while waiting:
            # Of listFiles, which goes down by itself, each file of this machine costs a process.
            for status in system.listStatus(waiting.pop()):
                name = str(status.getPath().getName())
                if name.startswith(_HIDDEN):
                    continue
                if status.isDirectory():
                    waiting.append(status.getPath())
                else:
                    files.append((name, int(status.getLen())))
        return sorted(files)

    def below(self, directory: str) -> list[Stamped]:
        """Return all files below the directory, with what is between it and them."""
        system, found = self._at(directory)
        walk = system.listFiles(found, True)
        root = len(str(system.resolvePath(found).toUri().getPath()).rstrip("/")) + 1
        files = []
        while walk.hasNext():
            status = walk.next()
            path = str(status.getPath().toUri().getPath())[root:]
            files.append(Stamped(path, int(status.getLen()), int(status.getModificationTime())))
        return files


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
        found = (each for each in self.below(path) if each.is_data)
        return sorted((each.path.rpartition("/")[2], each.size) for each in found)

    def below(self, directory: str) -> list[Stamped]:
        system, found = self._at(directory)
        return [
            Stamped(each.path[len(found.rstrip("/")) + 1 :], each.size, each.mtime_ns // 1_000_000)
            for each in system.get_file_info(FileSelector(found, recursive=True))
            if each.type == FileType.File
        ]


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
