"""Files where Spark keeps them."""

from __future__ import annotations

from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, copy_files

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.settings import is_elsewhere

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HIDDEN: Final = ("_", ".")
# Hadoop's schemes that Arrow names otherwise.
_SCHEMES: Final = {"s3a": "s3", "abfss": "abfs"}
# File systems of Arrow that rename a directory in one step.
_RENAMING: Final = {"local", "hdfs"}


def files_on(spark: SparkSession) -> Files:
    """Return the files that Spark sees: Arrow reads the same storage."""
    if is_elsewhere(spark):
        return Files()
    # Where paths without a scheme are.
    conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - only Java knows
    return Files(str(conf.get("fs.defaultFS", "")))


class Files:
    """Arrow's file systems, by the paths of Spark."""

    def __init__(self, default: str = "") -> None:
        self._default = "" if default.startswith("file:") else default.rstrip("/")

    def _at(self, path: str) -> tuple[Any, str]:
        """Return the file system, and the path in it."""
        scheme, colon, rest = path.partition("://")
        if path.startswith("file:"):
            return LocalFileSystem(), f"/{path.removeprefix('file:').lstrip('/')}"
        if not colon and not self._default:
            return LocalFileSystem(), str(Path(path).absolute())
        if not colon:
            if not path.startswith("/"):
                raise InvalidConfiguration(f"{path!r} is in {self._default}: write its whole URL.")
            return self._at(f"{self._default}{path}")
        host, _, name = rest.partition("/")
        system, root = FileSystem.from_uri(f"{_SCHEMES.get(scheme, scheme)}://{host}/")
        return system, f"{root.rstrip('/')}/{name}".rstrip("/")

    def _info(self, path: str) -> Any:
        system, found = self._at(path)
        return system.get_file_info(found)

    def exists(self, path: str) -> bool:
        return bool(self._info(path).type != FileType.NotFound)

    def names(self, directory: str) -> list[str]:
        """Return the names in the directory; none if there is no directory."""
        system, found = self._at(directory)
        if self._info(directory).type != FileType.Directory:
            return []
        return [each.base_name for each in system.get_file_info(FileSelector(found))]

    def touch(self, path: str) -> None:
        """Make an empty file, and the directories above it."""
        system, found = self._at(path)
        system.create_dir(found.rpartition("/")[0])
        system.open_output_stream(found).close()

    def delete(self, path: str) -> None:
        """Delete the file or the directory, if it exists."""
        system, found = self._at(path)
        kind = self._info(path).type
        if kind == FileType.Directory:
            system.delete_dir(found)
        elif kind == FileType.File:
            system.delete_file(found)

    def rename(self, directory: str, target: str) -> None:
        """Rename a directory; in one step where the storage can."""
        if self.exists(target):
            raise InvalidConfiguration(f"{target} exists already.")
        (system, found), (_, to) = self._at(directory), self._at(target)
        system.create_dir(to.rpartition("/")[0])
        if system.type_name in _RENAMING:
            system.move(found, to)
            return
        copy_files(found, to, source_filesystem=system, destination_filesystem=system)
        system.delete_dir(found)

    def stamps(self, urls: list[str]) -> list[tuple[str, int, int]]:
        """Return URL, size and time of change of each file, in order; Spark quotes URLs."""
        found = ((url, self._info(unquote(url))) for url in urls)
        return sorted((url, each.size, (each.mtime_ns or 0) // 1_000_000) for url, each in found)

    def first_line(self, url: str) -> str | None:
        """Return the first line of a text file, unpacked; None for an empty file."""
        system, found = self._at(unquote(url))
        with system.open_input_stream(found, compression="detect") as stream:
            line = TextIOWrapper(stream, "utf-8", "replace").readline()
        return line.rstrip("\r\n") if line else None

    def sizes(self, directory: str) -> list[tuple[str, int]]:
        """Return name and size of each data file below the directory, in order."""
        system, found = self._at(directory)
        files = (
            each
            for each in system.get_file_info(
                FileSelector(found, allow_not_found=True, recursive=True)
            )
            if each.type == FileType.File
        )
        return sorted(
            (each.base_name, each.size)
            for each in files
            if not any(part.startswith(_HIDDEN) for part in each.path[len(found) + 1 :].split("/"))
        )
