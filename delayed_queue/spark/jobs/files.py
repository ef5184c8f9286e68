"""Files where Spark keeps them: on this machine, in HDFS, in a bucket."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from delayed_queue.exceptions import InvalidConfiguration

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, order=True)
class FileDigest:
    """A file's name, size and checksum."""

    name: str
    size: int
    sha256: str


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

    def digests(self, path: str) -> list[FileDigest]:
        """Return the data files below the directory with their checksums; none is held whole."""
        system, found = self._at(path)
        walk = system.listFiles(found, True)
        digests = []
        while walk.hasNext():
            status = walk.next()
            at = status.getPath()
            if at.getName().endswith(".parquet"):
                sha256 = self._sha256(system.open(at))
                digests.append(FileDigest(at.getName(), int(status.getLen()), sha256))
        return sorted(digests)

    def _sha256(self, stream: Any) -> str:
        try:
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))
        finally:
            stream.close()


def digest_of(files: list[FileDigest]) -> str:
    """Return one checksum over all: of names, sizes and checksums, in order."""
    text = "".join(f"{each.name} {each.size} {each.sha256}\n" for each in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()
