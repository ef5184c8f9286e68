"""The manifest of an archive, and the deletion of the rows that its files hold."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.spark.database import Connection, Row, fetch, outlasting, steady
from delayed_queue.spark.pipeline.files import Sums
from delayed_queue.spark.pipeline.tables import Layout
from delayed_queue.spark.store.archiving import (
    ADVANCE_ARCHIVE,
    COUNT_BATCH,
    COUNT_KEPT,
    DELETE_ARCHIVED,
    DROP_ARCHIVE,
    FILE_TO_PRUNE,
    FILES_OF,
    HOLD_ARCHIVE,
    PLAN_ARCHIVE,
    SAVE_FILES,
    UNFINISHED_ARCHIVE,
)

LEASE_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """The name and size of a file, and the sums of the rows that were read back from it."""

    name: str
    size: int
    sums: Sums


class ArchiveLost(RuntimeError):
    """Another process took the archive over; this one stops and changes nothing more."""


@dataclass(slots=True)
class Manifest:
    """One row of ``delayed_queue_archive``."""

    id: int
    source: str
    # The directory of the files.
    path: str
    state: str
    rows: int | None
    holder: str
    held_for_ms: int


def new_holder() -> str:
    """Return a unique name for this process, with its host and its number."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def is_dead(holder: str) -> bool:
    """True if the holder was a process of this machine that has ended."""
    host, _, rest = holder.partition(":")
    pid = rest.partition(":")[0]
    if host != socket.gethostname() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return int(pid) == os.getpid()


class Manifests:
    """The manifests' statements, for one holder."""

    def __init__(self, connection: Connection, lease_ms: int = LEASE_MS) -> None:
        self.connection = connection
        self.holder = new_holder()
        self._lease_ms = lease_ms

    def unfinished(self, source: str) -> Manifest | None:
        rows = fetch(self.connection, UNFINISHED_ARCHIVE, {"source": source, "now": None})
        return Manifest(*rows[0]) if rows else None

    def plan(self, source: str, destination: str) -> Manifest:
        """Save a new archive with a directory of its own.

        Raises ArchiveLost if the table has another unfinished archive.
        """
        path = f"{destination}/{source}/archive={datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
        params = {
            "source": source, "path": path, "holder": self.holder, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        rows = fetch(self.connection, PLAN_ARCHIVE, params)
        found = self.unfinished(source) if rows else None
        if found is None:
            raise ArchiveLost(f"Another process is archiving {source} at this moment.")
        return found

    def hold(self, manifest: Manifest) -> bool:
        """Take the archive, or keep it; return False while another holder may be at work."""
        dead = manifest.holder if is_dead(manifest.holder) else self.holder
        params = {
            "id": manifest.id, "holder": self.holder, "dead": dead, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        if not fetch(self.connection, HOLD_ARCHIVE, params):
            return False
        manifest.holder = self.holder
        return True

    def drop(self, manifest: Manifest) -> None:
        """Delete the manifest of an archive that is only planned, or raise ArchiveLost."""
        params = {"id": manifest.id, "holder": self.holder}
        self._changed(manifest, fetch(self.connection, DROP_ARCHIVE, params))

    def save_files(self, manifest: Manifest, files: Sequence[ArchivedFile]) -> None:
        """Save the files and what was read back from each: the archive is written."""
        params = {
            "id": manifest.id,
            "names": [each.name for each in files],
            "sizes": [each.size for each in files],
            "rows": (rows := [each.sums.rows for each in files]),
            "checksums": [each.sums.checksum for each in files],
        }
        with self.connection.transaction():
            self._advance(manifest, "written", rows=sum(rows))
            self.connection.execute(SAVE_FILES, params)

    def finish(self, manifest: Manifest, *, deleted: int, changed: int) -> None:
        """Save that all rows of the files are deleted, or have changed."""
        self._advance(manifest, "pruned", deleted=deleted, changed=changed)

    def _advance(self, manifest: Manifest, to: str, **counts: int) -> None:
        """Save the next state, or raise ArchiveLost."""
        params: dict[str, Any] = {
            "id": manifest.id, "holder": self.holder, "state": manifest.state, "to": to,
            **dict.fromkeys(("rows", "deleted", "changed")), **counts, "now": None,
        }  # fmt: skip
        self._changed(manifest, fetch(self.connection, ADVANCE_ARCHIVE, params))
        manifest.state = to
        manifest.rows = counts.get("rows", manifest.rows)

    @staticmethod
    def _changed(manifest: Manifest, rows: list[Row]) -> None:
        if not rows:
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")

    def files(self, manifest: Manifest) -> list[FileRow]:
        """Return the files of the archive, in order of their names."""
        rows = fetch(self.connection, FILES_OF, {"id": manifest.id})
        return sorted(FileRow(*each) for each in rows)


class FileRow(NamedTuple):
    """A file, the number of its rows that are left to delete, and the outcome of the others."""

    name: str
    size: int
    left: int
    deleted: int
    changed: int


# The problems that a task finds with a file.
LOST: Final = "lost"
ALTERED: Final = "altered"
_FOUND: Final = pa.schema([("file", pa.string()), ("problem", pa.string())])


@dataclass(frozen=True, slots=True)
class Pruning:
    """Deletes the rows of files, in the executors, if a file matches the manifest.

    If two tasks have the same file, one counts each batch; the other finds it done.
    """

    layout: Layout
    archive: int
    holder: str
    batch_size: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, rows in files_read(batches):
            problem = outlasting(lambda: self.prune(name, rows))  # noqa: B023 # called here
            yield pa.RecordBatch.from_arrays([[name], [problem]], schema=_FOUND)

    def prune(self, name: str, rows: pa.Table) -> str:
        """Delete the rows that are left; return the problem, or an empty text."""
        read = Sums(rows.num_rows, int(rows["checksum"].to_numpy().sum()))
        which = {"id": self.archive, "name": name, "holder": self.holder}
        with closing(steady()) as connection:
            while True:
                found = fetch(connection, FILE_TO_PRUNE, which)
                if not found or Sums(*found[0][:2]) != read:
                    return ALTERED
                position, is_held = found[0][2:]
                if position == read.rows:
                    return ""
                if not is_held:
                    return LOST
                self._delete(connection, which, rows, position)

    def _delete(
        self, connection: Connection, which: dict[str, Any], rows: pa.Table, position: int
    ) -> None:
        """Delete batches up to the file's end, or until another task has counted one."""
        for begin in range(position, rows.num_rows, self.batch_size):
            batch = rows.slice(begin, self.batch_size)
            place = {**which, "from": begin, "to": begin + batch.num_rows}
            if not self._delete_batch(connection, place, batch):
                return

    def _delete_batch(self, connection: Connection, place: dict[str, Any], batch: pa.Table) -> bool:
        """Delete a batch and count it in one transaction; return False if it was rolled back."""
        keys = [str(each) for each in batch["key"].to_pylist()]
        params = {"keys": keys, "digests": batch["digest"].to_pylist()}
        kept = 0
        with connection.transaction() as transaction:
            delete = self.layout.statement(DELETE_ARCHIVED)
            deleted = connection.execute(delete, params).rowcount
            if deleted < len(keys):
                kept = fetch(connection, self.layout.statement(COUNT_KEPT), params)[0][0]
            counted = fetch(connection, COUNT_BATCH, {**place, "deleted": deleted, "changed": kept})
            if not counted:
                raise psycopg.Rollback(transaction)
        return bool(counted)


def files_read(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each file; a file is read to its end before the next one starts."""
    last, kept = "", list[pa.RecordBatch]()
    for batch in batches:
        for name in batch.column("file").unique().to_pylist():
            if name != last and kept:
                yield last, pa.Table.from_batches(kept)
                kept = []
            last = name
            kept.append(batch.filter(pc.equal(batch.column("file"), name)))
    if kept:
        yield last, pa.Table.from_batches(kept)
