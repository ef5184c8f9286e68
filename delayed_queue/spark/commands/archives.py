"""``archive``: old rows of a table to Parquet; deleted only when what was written was checked.

planned → staged → published → pruned, each written to the manifest before the next begins. A run
first takes up what an earlier one left; nothing is deleted but rows whose key and digest were read
from files whose checksums are those of the manifest.
"""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.messages import to_milliseconds
from delayed_queue.spark.commands import DONE, duration, whole
from delayed_queue.spark.database import Connection, check_database, fetch, outlasting, steady
from delayed_queue.spark.jobs.console import Console, aligned
from delayed_queue.spark.jobs.files import digest_of, files_on
from delayed_queue.spark.jobs.tables import (
    DIGEST,
    LEASE_MS,
    Layout,
    Manifest,
    Manifests,
    Reading,
    Table,
    named,
    parse_only,
    pieces_read,
    ranges_of,
)
from delayed_queue.spark.session import Stopping, session
from delayed_queue.spark.settings import SparkSettings
from delayed_queue.spark.store.archiving import (
    BOUNDS,
    COUNT_KEPT,
    COUNT_RANGE,
    DELETE_ARCHIVED,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")
# The manifest's, and the one that keeps it.
CONNECTIONS_OF_DRIVER: Final = 2
_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What ``archive`` was asked for."""

    tables: tuple[Table, ...]
    cutoff: int
    destination: str
    rows_per_archive: int = 1_000_000
    rows_per_file: int = 100_000
    batch_size: int = 5_000
    is_dry_run: bool = False
    lease_ms: int = LEASE_MS


@dataclass(slots=True)
class Archived:
    """What became of one table."""

    source: str
    archives: int = 0
    rows: int = 0
    deleted: int = 0
    changed: int = 0
    waiting: int = 0
    paths: list[str] = field(default_factory=list)


def run(spark: SparkSession, options: ArchiveOptions, console: Console) -> list[Archived]:
    """Archive each table, one stretch after the other, until nothing old enough is left."""
    check_database(spark, beside=CONNECTIONS_OF_DRIVER)
    return [_archived(spark, options, console, each) for each in options.tables]


def _archived(
    spark: SparkSession, options: ArchiveOptions, console: Console, table: Table
) -> Archived:
    """Archive the table, though the database restarts; the manifest tells where it stands."""
    found = Archived(table.source)

    def work() -> Archived:
        with steady() as connection:
            return Archive(spark, options, console, connection, table, found).run()

    return outlasting(work, console.progress)


def lines_of(found: list[Archived]) -> list[str]:
    """Return the answer in words."""
    head = ("table", "archived", "deleted", "changed since", "archives")
    rows = [(each.source, each.rows, each.deleted, each.changed, each.archives) for each in found]
    waiting = [
        f"{each.source}: {each.waiting:,} rows would be archived" for each in found if each.waiting
    ]
    return [*aligned([head, *rows]), *waiting, *(path for each in found for path in each.paths)]


class Archive:
    """The archiving of one table."""

    def __init__(
        self,
        spark: SparkSession,
        options: ArchiveOptions,
        console: Console,
        connection: Connection,
        table: Table,
        found: Archived,
    ) -> None:
        self._spark = spark
        self._options = options
        self._console = console
        self._connection = connection
        self._table = table
        self._layout = Layout.of(connection, table)
        self._manifests = Manifests(connection, options.lease_ms)
        self._files = files_on(spark)
        self._found = found
        self._after_cutoff: set[tuple[str, str]] = set()

    def run(self) -> Archived:
        if self._options.is_dry_run:
            self._found.waiting = self._bounds(self._options.cutoff, 2**62)[1]
            return self._found
        self._resume()
        while True:
            bounds, total = self._bounds(self._options.cutoff, self._options.rows_per_archive)
            # A stretch that changed since it was archived stays; the next command takes it.
            if not total or (bounds[0], bounds[-1]) in self._after_cutoff:
                return self._found
            self._after_cutoff.add((bounds[0], bounds[-1]))
            cutoff = self._options.cutoff
            self._layout.refuse_infinite(self._connection, bounds[0], bounds[-1], cutoff)
            manifest = self._manifests.plan(
                self._table, (bounds[0], bounds[-1]), self._options.cutoff, total,
                self._options.destination.rstrip("/"),
            )  # fmt: skip
            self._finish(manifest)

    def _resume(self) -> None:
        manifest = self._manifests.unfinished(self._table.source)
        if manifest is None:
            return
        self._console.progress(
            f"taking up archive {manifest.id} of {manifest.source}, which was left {manifest.state}"
        )
        pause = threading.Event()
        while not self._manifests.hold(manifest):
            self._console.progress(
                f"{manifest.holder.rpartition(':')[0]} holds it for {manifest.held_for_ms // 1000} "
                "more seconds; waiting …"
            )
            pause.wait(min(max(manifest.held_for_ms / 1000, 0.1), 5))
            found = self._manifests.unfinished(self._table.source)
            if found is None or found.id != manifest.id:
                return
            manifest = found
        self._finish(manifest)

    def _finish(self, manifest: Manifest) -> None:
        """Take the archive from where it stands to its end."""
        with self._kept(manifest):
            if manifest.state == "staged" and not self._is_whole(manifest):
                self._console.progress("what was staged is not whole; writing it again")
                self._manifests.advance(manifest, "planned")
            if manifest.state == "planned":
                self.stage(manifest)
            if manifest.state == "staged":
                self.publish(manifest)
            self._prune(manifest)
        self._found.archives += 1
        self._found.rows += manifest.rows or 0
        self._found.deleted += manifest.deleted
        self._found.paths.append(manifest.path)

    @contextmanager
    def _kept(self, manifest: Manifest) -> Iterator[None]:
        """Keep the manifest in this process's hands while Spark writes and reads."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(self._options.lease_ms / 3000):
                # The next time tries again; and who loses the archive is told at the next step.
                with suppress(psycopg.Error, ResourceUnavailable), steady() as connection:
                    mine = Manifests(connection, self._options.lease_ms)
                    mine.holder = self._manifests.holder
                    mine.hold(manifest)

        keeper = threading.Thread(target=keep, name="archive-keeper", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ended.set()
            keeper.join()

    # Steps

    def stage(self, manifest: Manifest) -> None:
        """Write the rows to a directory of this holder's own, and read back what was written."""
        staging = f"{manifest.destination}/_staging/{manifest.id}-{self._manifests.token}"
        if manifest.staging:
            self._files.delete(manifest.staging)
        self._manifests.advance(manifest, "planned", staging=staging)
        for _ in range(_TRIES):
            self._console.progress(f"{manifest.source}: writing to {staging} …")
            rows = self._write(manifest, staging)
            if rows >= self._there(manifest):
                break
        else:
            raise InvalidConfiguration(
                f"{staging} has fewer rows than {manifest.source}, {_TRIES} times in a row. "
                "Nothing was deleted. Is the age older than the longest transaction?"
            )
        files = self._files.digests(staging)
        digest = digest_of(files)
        self._manifests.advance(manifest, "staged", rows=rows, digest=digest, files=files)

    def _write(self, manifest: Manifest, staging: str) -> int:
        """Write one file for each piece; return how many rows can be read back, each key once."""
        layout = Layout(manifest.table, self._layout.types)
        ranges = ranges_of(self._bounds(manifest.cutoff, manifest.expected, layout)[0])
        rows = pieces_read(self._spark, Reading(layout, manifest.cutoff, tuple(ranges)))
        rows.write.mode("overwrite").parquet(staging)
        back = self._read(staging)
        count, distinct = back.selectExpr(
            "count(*)", f"count(DISTINCT `{manifest.key}`, {DIGEST})"
        ).collect()[0]
        if count != distinct:
            raise InvalidConfiguration(f"{staging} has rows twice. Nothing was deleted.")
        return int(count)

    def _there(self, manifest: Manifest) -> int:
        """Return how many rows the table has of those that were to be written."""
        layout = Layout(manifest.table, self._layout.types)
        params = {"lower": manifest.lower, "upper": manifest.upper, "cutoff": manifest.cutoff}
        return int(fetch(self._connection, layout.statement(COUNT_RANGE), params)[0][0])

    def publish(self, manifest: Manifest) -> None:
        """Give the directory its name; a crash in between is seen by the name."""
        if not self._files.exists(manifest.path):
            self._files.rename(manifest.staging, manifest.path)
        elif not self._is_whole(manifest):
            raise InvalidConfiguration(
                f"{manifest.path} is there already, and is no archive of this one: it may be that "
                "of another database. Nothing was deleted. Move it away, and archive again."
            )
        self._manifests.advance(manifest, "published")

    def _prune(self, manifest: Manifest) -> None:
        """Check the files once more, then delete the rows that are in them, in batches."""
        if not self._is_whole(manifest):
            raise InvalidConfiguration(
                f"The files in {manifest.path} are not those that were written: nothing was "
                "deleted. Put them back, or delete the row of the manifest, and archive again."
            )
        kept = self._delete_all(manifest)
        self._found.changed += kept
        self._manifests.advance(manifest, "pruned", changed=kept)
        self._console.progress(f"{manifest.deleted:,} rows of {manifest.source} deleted")

    def _delete_all(self, manifest: Manifest) -> int:
        """Delete the archived rows; return how many stay, as they have changed since."""
        kept = 0
        for batch in batched(self._archived_keys(manifest.path), self._options.batch_size):
            keys, digests = [key for key, _ in batch], [digest for _, digest in batch]
            self._manifests.pruned(manifest, lambda: self.delete(keys, digests))  # noqa: B023 # called here
            counted = fetch(self._connection, self._layout.statement(COUNT_KEPT), {"keys": keys})
            kept += counted[0][0]
        return kept

    def delete(self, keys: list[str], digests: list[str]) -> int:
        statement = self._layout.statement(DELETE_ARCHIVED)
        return self._connection.execute(statement, {"keys": keys, "digests": digests}).rowcount

    # Looking

    def _bounds(
        self, cutoff: int, limit: int, layout: Layout | None = None
    ) -> tuple[list[str], int]:
        """Return where pieces begin, the last key, and how many rows there are."""
        statement = (layout or self._layout).statement(BOUNDS)
        params = {"cutoff": cutoff, "limit": limit, "piece": self._options.rows_per_file}
        rows = fetch(self._connection, statement, params)
        return [key for key, _, _ in rows], rows[0][2] if rows else 0

    def _is_whole(self, manifest: Manifest) -> bool:
        """Return whether the files, wherever they are by now, are those of the manifest."""
        path = manifest.path if self._files.exists(manifest.path) else manifest.staging
        if not self._files.exists(path):
            return False
        return digest_of(self._files.digests(path)) == manifest.digest

    def _read(self, path: str) -> DataFrame:
        return self._spark.read.schema(self._layout.schema).parquet(path)

    def _archived_keys(self, path: str) -> Iterator[tuple[str, str]]:
        rows = self._read(path).select(self._table.key, DIGEST).toLocalIterator()
        return ((str(key), digest) for key, digest in rows)


def batched(items: Iterator[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most that many."""
    while batch := list(islice(items, size)):
        yield batch


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("tables", nargs="*", default=["dead-letters"], metavar="TABLE",
        help="dead-letters, callback-attempts, or a table of yours")  # fmt: skip
    add("--older-than", type=duration, required=True, metavar="TIME", help="as in 30d")
    add("--to", required=True, metavar="PATH", help="where the archives are kept")
    add("--key", metavar="COLUMN", help="the primary key; default: id")
    add("--age", metavar="COLUMN", help="by which rows age; NULL never does")
    add("--only", action="append", default=[], metavar="COLUMN=VALUE,…", help="only these rows")
    add(
        "--rows",
        type=whole,
        default=1_000_000,
        metavar="N",
        help="of one archive, at most",
    )
    add("--rows-per-file", type=whole, default=100_000, metavar="N")
    add(
        "--batch-size",
        type=whole,
        default=5_000,
        metavar="N",
        help="rows deleted at a time",
    )
    add("--dry-run", action="store_true", help="count what would be archived")


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:

    only = parse_only(options.only)
    tables = tuple(named(each, options.key, options.age, only) for each in options.tables)
    asked = ArchiveOptions(
        tables=tables,
        cutoff=to_milliseconds(datetime.now(UTC) - options.older_than),
        destination=options.to,
        rows_per_archive=options.rows,
        rows_per_file=options.rows_per_file,
        batch_size=options.batch_size,
        is_dry_run=options.dry_run,
    )
    with session(settings, console, "archive", is_verbose=options.verbose) as spark:
        found = run(spark, asked, console)
    console.answer({"tables": [asdict(each) for each in found]}, lines_of(found))
    return DONE
