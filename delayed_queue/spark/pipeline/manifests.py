"""The manifest of an archive, and the deletion of what its files are known to hold."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import uuid4

import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.spark.database import Connection, fetch, outlasting, steady
from delayed_queue.spark.pipeline.files import Sums
from delayed_queue.spark.pipeline.tables import Layout, Table
from delayed_queue.spark.store.archiving import (
    ADVANCE_ARCHIVE,
    COUNT_BATCH,
    COUNT_KEPT,
    DELETE_ARCHIVED,
    FILE_TO_PRUNE,
    FILES_OF,
    HOLD_ARCHIVE,
    NOTE_FILES,
    PLAN_ARCHIVE,
    UNFINISHED_ARCHIVE,
)

LEASE_MS: Final = 120_000


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """What a file is known by: its name, its size, and what was read back from it."""

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
    key: str
    age: str
    lower: str
    upper: str
    only: str
    cutoff: int
    expected: int
    destination: str
    state: str
    staging: str
    rows: int | None
    holder: str
    held_for_ms: int

    @property
    def table(self) -> Table:
        return Table(self.source, self.key, self.age, json.loads(self.only))

    @property
    def path(self) -> str:
        """Return where the files end up."""
        return f"{self.destination}/{self.source}/archive={self.id:08d}"


def new_holder() -> str:
    """Return a name for this process that no other has, and that tells who it is."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"


def is_dead(holder: str) -> bool:
    """Return whether the holder was a process of this machine that is gone."""
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

    @property
    def token(self) -> str:
        return self.holder.rpartition(":")[2]

    def unfinished(self, source: str) -> Manifest | None:
        rows = fetch(self.connection, UNFINISHED_ARCHIVE, {"source": source, "now": None})
        return Manifest(*rows[0]) if rows else None

    def plan(
        self, table: Table, bounds: tuple[str, str], cutoff: int, expected: int, destination: str
    ) -> Manifest:
        """Write the decision down; another unfinished archive of the table refuses it."""
        params = {
            "source": table.source, "key": table.key, "age": table.age, "lower": bounds[0],
            "upper": bounds[1], "only": table.only_json, "cutoff": cutoff, "expected": expected,
            "destination": destination, "holder": self.holder, "lease": self._lease_ms,
            "now": None,
        }  # fmt: skip
        rows = fetch(self.connection, PLAN_ARCHIVE, params)
        found = self.unfinished(table.source) if rows else None
        if found is None:
            raise ArchiveLost(f"Another process is archiving {table.source} at this moment.")
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

    def advance(
        self,
        manifest: Manifest,
        to: str,
        *,
        staging: str | None = None,
        rows: int | None = None,
        deleted: int | None = None,
        changed: int | None = None,
    ) -> None:
        """Write the next state down, or raise ArchiveLost."""
        params: dict[str, Any] = {
            "id": manifest.id, "holder": self.holder, "state": manifest.state, "to": to,
            "staging": staging, "rows": rows, "deleted": deleted, "changed": changed, "now": None,
        }  # fmt: skip
        if not fetch(self.connection, ADVANCE_ARCHIVE, params):
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")
        manifest.state = to
        manifest.staging = manifest.staging if staging is None else staging
        manifest.rows = manifest.rows if rows is None else rows

    def staged(self, manifest: Manifest, files: Sequence[ArchivedFile]) -> None:
        """Write down that the files are written, and what was read back from each."""
        params = {
            "id": manifest.id,
            "names": [each.name for each in files],
            "sizes": [each.size for each in files],
            "rows": (rows := [each.sums.rows for each in files]),
            "checksums": [each.sums.checksum for each in files],
        }
        with self.connection.transaction():
            self.advance(manifest, "staged", rows=sum(rows))
            self.connection.execute(NOTE_FILES, params)

    def files(self, manifest: Manifest) -> list[FileRow]:
        """Return the files of the archive, in order of their names."""
        rows = fetch(self.connection, FILES_OF, {"id": manifest.id})
        return sorted(FileRow(*each) for each in rows)


class FileRow(NamedTuple):
    """A file, how many of its rows are yet to be deleted, and what became of the others."""

    name: str
    size: int
    left: int
    deleted: int
    changed: int


# What a task finds wrong with a file.
LOST: Final = "lost"
ALTERED: Final = "altered"
_FOUND: Final = pa.schema([("file", pa.string()), ("problem", pa.string())])


@dataclass(frozen=True, slots=True)
class Pruning:
    """Deletes the rows of files, in the executors: of a file that is what the manifest says.

    Of twins that have one file, each batch is counted by one; the other finds it done.
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
        """Delete the rows, from where it was left; return what is wrong, or nothing."""
        read = Sums(rows.num_rows, int(rows["checksum"].to_numpy().sum()))
        which = {"id": self.archive, "name": name, "holder": self.holder}
        with closing(steady()) as connection:
            while True:
                noted = fetch(connection, FILE_TO_PRUNE, which)
                if not noted or Sums(*noted[0][:2]) != read:
                    return ALTERED
                position, is_held = noted[0][2:]
                if position == read.rows:
                    return ""
                if not is_held:
                    return LOST
                self._delete(connection, which, rows, position)

    def _delete(
        self, connection: Connection, which: dict[str, Any], rows: pa.Table, position: int
    ) -> None:
        """Delete batches until the file's end, or until one is not this task's to count."""
        for begin in range(position, rows.num_rows, self.batch_size):
            batch = rows.slice(begin, self.batch_size)
            turn = {**which, "from": begin, "to": begin + batch.num_rows}
            if not self._delete_batch(connection, turn, batch):
                return

    def _delete_batch(self, connection: Connection, turn: dict[str, Any], batch: pa.Table) -> bool:
        """Delete a batch and count it in one transaction; return False if nothing was changed."""
        keys = [_text_of(each) for each in batch["key"].to_pylist()]
        params = {"keys": keys, "digests": batch["digest"].to_pylist()}
        kept = 0
        with connection.transaction() as transaction:
            delete = self.layout.statement(DELETE_ARCHIVED)
            deleted = connection.execute(delete, params).rowcount
            if deleted < len(keys):
                kept = fetch(connection, self.layout.statement(COUNT_KEPT), params)[0][0]
            counted = fetch(connection, COUNT_BATCH, {**turn, "deleted": deleted, "changed": kept})
            if not counted:
                raise psycopg.Rollback(transaction)
        return bool(counted)


def _text_of(key: Any) -> str:
    return f"\\x{key.hex()}" if isinstance(key, bytes) else str(key)


def files_read(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
    """Yield each file's rows, in their order: one is read to its end before the next begins."""
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
