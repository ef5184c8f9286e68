"""The manifest of an archive, the sums of its files, and the deletion of their rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from delayed_queue.db.sql import value_of
from delayed_queue.spark.database import Connection, connect, fetch, outlasting, steady
from delayed_queue.spark.pipeline.tables import Layout
from delayed_queue.spark.store.archiving import (
    ADVANCE_ARCHIVE,
    COUNT_KEPT,
    DELETE_ARCHIVED,
    DROP_ARCHIVE,
    LOCK_ARCHIVES,
    PLAN_ARCHIVE,
    UNFINISHED_ARCHIVE,
)

if TYPE_CHECKING:
    from pyspark.sql import Column

_PAUSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sums:
    """The number of rows, and the XOR of their checksums, in any order.

    Two are equal if no row is lost, doubled or changed.
    """

    rows: int = 0
    checksum: int = 0

    def __add__(self, other: Sums) -> Sums:
        return Sums(self.rows + other.rows, self.checksum ^ other.checksum)


def checksum_of(columns: Iterable[str]) -> str:
    """Return the expression for the checksum of a row."""
    return f"xxhash64({', '.join(f'`{each}`' for each in columns)})"


def sums(columns: Iterable[str]) -> list[Column]:
    """Return the aggregates that are the fields of Sums."""
    from pyspark.sql.functions import expr

    checksum = f"coalesce(bit_xor({checksum_of(columns)}), 0L)"
    return [expr("count(1)").alias("rows"), expr(checksum).alias("checksum")]


class ArchiveLost(RuntimeError):
    """Another process has finished or dropped the archive; this one changes nothing more."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """The name and size of a file, and the sums of the rows that were read back from it."""

    name: str
    size: int
    rows: int
    checksum: int

    @property
    def sums(self) -> Sums:
        return Sums(self.rows, self.checksum)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One row of ``delayed_queue_archive``."""

    id: int
    source: str
    # The directory of the files.
    path: str
    state: str
    files: Sequence[ArchivedFile] = ()

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


@contextmanager
def locked(source: str, progress: Callable[[str], None]) -> Iterator[None]:
    """Let one process archive the table; wait for another one.

    The lock belongs to an open transaction, which ends with this process. So it also works behind
    a pooler in transaction mode.
    """
    with closing(connect()) as connection:
        while not value_of(fetch(connection, LOCK_ARCHIVES, {"source": source})):
            connection.rollback()
            progress(f"another process archives {source}; waiting …")
            threading.Event().wait(_PAUSE_SECONDS)
        yield


class Manifests:
    """The manifests' statements. Each step names the state it comes from."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def unfinished(self, source: str) -> Manifest | None:
        rows = fetch(self.connection, UNFINISHED_ARCHIVE, {"source": source})
        if not rows:
            return None
        number, path, state, files = rows[0]
        return Manifest(number, source, path, state, [ArchivedFile(**e) for e in json.loads(files)])

    def plan(self, source: str, destination: str) -> Manifest:
        """Save a new archive with a directory of its own.

        Raises ArchiveLost if the table has another unfinished archive.
        """
        path = f"{destination}/{source}/archive={datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}"
        rows = fetch(self.connection, PLAN_ARCHIVE, {"source": source, "path": path, "now": None})
        if not rows:
            raise ArchiveLost(f"Another process is archiving {source} at this moment.")
        return Manifest(rows[0][0], source, path, "planned")

    def drop(self, manifest: Manifest) -> None:
        """Delete the manifest of an archive that is only planned."""
        self._changed(manifest, DROP_ARCHIVE, {"id": manifest.id})

    def save_files(self, manifest: Manifest, files: Sequence[ArchivedFile]) -> Manifest:
        """Save the files and what was read back from each: the archive is written."""
        written = Manifest(manifest.id, manifest.source, manifest.path, "written", files)
        named = json.dumps([asdict(each) for each in files])
        self._advance(manifest, "written", files=named, rows=written.rows)
        return written

    def finish(self, manifest: Manifest, changed: int) -> None:
        """Save that all rows of the files have left the table, but for changed ones."""
        self._advance(manifest, "pruned", deleted=manifest.rows - changed, changed=changed)

    def _advance(self, manifest: Manifest, to: str, **saved: Any) -> None:
        unchanged = dict.fromkeys(("files", "rows", "deleted", "changed"))
        step = {"id": manifest.id, "state": manifest.state, "to": to, "now": None}
        self._changed(manifest, ADVANCE_ARCHIVE, {**step, **unchanged, **saved})

    def _changed(self, manifest: Manifest, statement: str, params: Mapping[str, Any]) -> None:
        """Run a step; raise ArchiveLost if the archive was not in the state before it."""
        if not fetch(self.connection, statement, params):
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")


@dataclass(frozen=True, slots=True)
class Pruning:
    """Deletes the rows of files, in the executors, if a file matches the manifest.

    A repeated task, a twin or a later run finds the rows gone: deleting again changes nothing.
    """

    layout: Layout
    files: Mapping[str, Sums]
    batch_size: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for name, rows in files_read(batches):
            kept = outlasting(lambda: self.prune(name, rows))  # noqa: B023 # called here
            yield pa.RecordBatch.from_pydict(
                {"file": [name], "changed": pa.array([kept], pa.int64())}
            )

    def prune(self, name: str, rows: pa.Table) -> int | None:
        """Delete the rows; return how many have changed and stay, or None for a wrong file."""
        checksum = int(np.bitwise_xor.reduce(rows["checksum"].to_numpy()))
        if self.files.get(name) != Sums(rows.num_rows, checksum):
            return None
        with closing(steady()) as connection:
            starts = range(0, rows.num_rows, self.batch_size)
            return sum(
                self._delete(connection, rows.slice(begin, self.batch_size)) for begin in starts
            )

    def _delete(self, connection: Connection, batch: pa.Table) -> int:
        """Delete a batch in one transaction; return the number of its rows that stay."""
        keys = [str(each) for each in batch["key"].to_pylist()]
        params = {"keys": keys, "digests": batch["digest"].to_pylist()}
        if connection.execute(self.layout.statement(DELETE_ARCHIVED), params).rowcount == len(keys):
            return 0
        kept: int = value_of(fetch(connection, self.layout.statement(COUNT_KEPT), params))
        return kept


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
