"""``archive``: moves old rows of a table to Parquet; deletes only rows of checked files.

planned → written → pruned: each state is saved in the manifest before the next step starts. A run
first finishes an archive that an earlier run has left. A row is deleted only if its key and digest
were read from a file whose checksum is the manifest's. Rows pass only through executors.
"""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Final

import psycopg

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.messages import to_milliseconds
from delayed_queue.spark.database import (
    Connection,
    check_database,
    database_now,
    outlasting,
    steady,
)
from delayed_queue.spark.pipeline.cli import DONE, add_partitions, duration, whole
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.files import Sums, checksum_of, files_on, sums
from delayed_queue.spark.pipeline.manifests import (
    LEASE_MS,
    LOST,
    ArchivedFile,
    ArchiveLost,
    Manifest,
    Manifests,
    Pruning,
)
from delayed_queue.spark.pipeline.session import Stopping, session, uncut
from delayed_queue.spark.pipeline.tables import (
    DIGEST,
    KNOWN,
    Layout,
    Range,
    RangeReader,
    Table,
    parse_only,
    rows_of,
    table_named,
)
from delayed_queue.spark.settings import TASKS_EACH, SparkSettings, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The manifest's connection, and the one that renews its lease.
CONNECTIONS_OF_DRIVER: Final = 2
# Rows that a crash while they are written makes a small machine write again.
_ROWS: Final = 1_000_000
_FILE: Final = "_metadata.file_name"


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """Options of ``archive``."""

    tables: tuple[Table, ...]
    cutoff: int
    destination: str
    rows_per_archive: int | None = None
    rows_per_file: int = 100_000
    batch_size: int = 5_000
    is_dry_run: bool = False
    lease_ms: int = LEASE_MS
    partitions: int | None = None


@dataclass(slots=True)
class Archived:
    """The outcome for one table."""

    source: str
    archives: int = 0
    rows: int = 0
    deleted: int = 0
    changed: int = 0
    waiting: int = 0
    paths: list[str] = field(default_factory=list)


def run(spark: SparkSession, options: ArchiveOptions, console: Console) -> list[Archived]:
    """Archive the rows of each table that are old enough."""
    check_database(spark, beside=CONNECTIONS_OF_DRIVER)
    return [_archived(spark, options, console, each) for each in options.tables]


def _archived(
    spark: SparkSession, options: ArchiveOptions, console: Console, table: Table
) -> Archived:
    """Archive the table, again from its manifest if the database restarts."""
    found = Archived(table.source)

    def work() -> Archived:
        with steady() as connection:
            return Archive(spark, options, console, connection, table, found).run()

    return outlasting(work, console.progress)


def lines_of(found: list[Archived]) -> list[str]:
    """Return the result in words."""
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
        self._layout = Layout.of(connection, table)
        self._manifests = Manifests(connection, options.lease_ms)
        self._files = files_on(spark)
        self._found = found

    def run(self) -> Archived:
        if self._options.is_dry_run:
            self._found.waiting = self._layout.count(self._connection, self._options.cutoff)
            return self._found
        self._resume()
        self._archive_old()
        return self._found

    def _archive_old(self) -> None:
        """Archive the rows that are old enough now, in archives of at most ``--rows`` rows."""
        tasks, rows_per_file = tasks_of(self._spark), self._options.rows_per_file
        cutoff = self._options.cutoff
        ranges = self._layout.ranges(self._connection, cutoff, rows_per_file, tasks)
        most = self._options.rows_per_archive or max(_ROWS, TASKS_EACH * tasks * rows_per_file)
        step = max(most // max(ranges[0].rows, 1), 1) if ranges else 1
        for begin in range(0, len(ranges), step):
            destination = self._options.destination.rstrip("/")
            manifest = self._manifests.plan(self._found.source, destination)
            with self._kept(manifest):
                self.write(manifest, ranges[begin : begin + step])
                self.prune(manifest)

    def _resume(self) -> None:
        """Finish an archive that an earlier run has left; drop it if it is not written."""
        manifest = self._manifests.unfinished(self._found.source)
        if manifest is None:
            return
        self._console.progress(
            f"resuming the archive in {manifest.path}, which is {manifest.state}"
        )
        pause = threading.Event()
        while not self._manifests.hold(manifest):
            self._console.progress(
                f"{manifest.holder.rpartition(':')[0]} holds it for {manifest.held_for_ms // 1000} "
                "more seconds; waiting …"
            )
            pause.wait(min(max(manifest.held_for_ms / 1000, 0.1), 5))
            found = self._manifests.unfinished(self._found.source)
            if found is None or found.id != manifest.id:
                return
            manifest = found
        if manifest.state == "planned":
            self._files.delete(manifest.path)
            self._manifests.drop(manifest)
            return
        with self._kept(manifest):
            self.prune(manifest)

    @contextmanager
    def _kept(self, manifest: Manifest) -> Iterator[None]:
        """Renew the lease of the manifest in the block."""
        ended = threading.Event()

        def keep() -> None:
            while not ended.wait(self._options.lease_ms / 3000):
                # A failure is tried again the next time; a lost archive fails at its next step.
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

    def write(self, manifest: Manifest, ranges: Sequence[Range]) -> None:
        """Write the rows to files, and read the files back."""
        self._console.progress(f"{manifest.source}: writing to {manifest.path} …")
        read = self._write_files(manifest.path, ranges)
        files = self.read_back(manifest.path)
        if reduce(add, (each.sums for each in files), Sums(0, 0)) != read:
            raise InvalidConfiguration(
                f"The files in {manifest.path} do not have the rows that were read. Nothing was "
                "deleted; archive again."
            )
        try:
            self._manifests.save_files(manifest, files)
        except ArchiveLost:
            # Another process archives the same rows.
            self._files.delete(manifest.path)
            raise

    def _write_files(self, path: str, ranges: Sequence[Range]) -> Sums:
        """Write the ranges to files; return the sums of the rows that were read.

        A row that a task fails to read is in no file, so it is not deleted.
        """
        from pyspark.sql import Observation

        reader = RangeReader(self._layout, self._options.cutoff, tuple(ranges))
        rows = rows_of(self._spark, reader, self._options.partitions)
        # Spark counts each partition once, also if several tasks tried it.
        read = Observation()
        rows.observe(read, *sums(rows.columns)).write.parquet(path)
        return Sums.of(**read.get)

    def read_back(self, path: str) -> list[ArchivedFile]:
        """Return the files, with the sums of the rows in each."""
        from pyspark.sql.functions import col

        back = self._read(path)
        found = back.groupBy(col(_FILE).alias("file")).agg(*sums(back.columns)).collect()
        read = {name: Sums.of(*figures) for name, *figures in found}
        return [
            ArchivedFile(name, size, read.get(name, Sums(0, 0)))
            for name, size in self._files.sizes(path)
        ]

    def prune(self, manifest: Manifest) -> None:
        """Delete the rows that are in the files, and save their outcome."""
        known = [(each.name, each.size) for each in self._manifests.files(manifest)]
        if not self._files.exists(manifest.path) or self._files.sizes(manifest.path) != known:
            raise _altered(manifest.path)
        self._delete_rows(manifest)
        files = self._manifests.files(manifest)
        if left := [each.name for each in files if each.left]:
            raise _altered(manifest.path, left)
        deleted, changed = sum(each.deleted for each in files), sum(each.changed for each in files)
        self._manifests.finish(manifest, deleted=deleted, changed=changed)
        self._console.progress(f"{deleted:,} rows of {manifest.source} deleted")
        self._found.archives += 1
        self._found.rows += manifest.rows or 0
        self._found.deleted += deleted
        self._found.changed += changed
        self._found.paths.append(manifest.path)

    def _delete_rows(self, manifest: Manifest) -> None:
        """Let a task for each file check it, and delete its rows in batches."""
        holder, batch_size = self._manifests.holder, self._options.batch_size
        pruning = Pruning(self._layout, manifest.id, holder, batch_size)
        back = self._read(manifest.path)
        rows = back.selectExpr(
            "id AS key", f"`{DIGEST}` AS digest",
            f"{checksum_of(back.columns)} AS checksum", f"{_FILE} AS file",
        )  # fmt: skip
        if self._options.partitions is not None:
            rows = rows.coalesce(self._options.partitions)
        with uncut(self._spark, is_wanted=True):
            found = rows.mapInArrow(pruning, "file string, problem string").collect()
        if any(problem == LOST for _, problem in found):
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")
        if wrong := sorted(name for name, problem in found if problem):
            raise _altered(manifest.path, wrong)

    def _read(self, path: str) -> DataFrame:
        return self._spark.read.schema(self._layout.schema).parquet(path)


def _altered(path: str, names: Sequence[str] = ()) -> InvalidConfiguration:
    which = f" ({', '.join(names[:3])})" if names else ""
    return InvalidConfiguration(
        f"The files in {path} are not those that were written{which}: nothing of them was "
        "deleted. Put them back, or delete the row of the manifest, and archive again."
    )


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("tables", nargs="*", default=["dead-letters"], metavar="TABLE",
        help=f"one or several of {', '.join(KNOWN)}; default: dead-letters")  # fmt: skip
    add("--older-than", type=duration, required=True, metavar="TIME", help="as in 30d")
    add("--to", required=True, metavar="PATH", help="directory of the archives")
    add("--only", action="append", default=[], metavar="COLUMN=VALUE,…", help="only these rows")
    add("--rows", type=whole, metavar="N",
        help="rows of one archive; default: three files for each task, at least a million"
    )  # fmt: skip
    add("--rows-per-file", type=whole, default=100_000, metavar="N")
    add("--batch-size", type=whole, default=5_000, metavar="N", help="rows deleted at a time")
    add("--dry-run", action="store_true", help="count the rows, write nothing")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    only = parse_only(options.only)
    asked = ArchiveOptions(
        tables=tuple(replace(table_named(each), only=only) for each in options.tables),
        cutoff=to_milliseconds(database_now() - options.older_than),
        destination=options.to,
        rows_per_archive=options.rows,
        rows_per_file=options.rows_per_file,
        batch_size=options.batch_size,
        is_dry_run=options.dry_run,
        partitions=options.partitions,
    )
    with session(settings, console, "archive", is_verbose=options.verbose) as spark:
        found = run(spark, asked, console)
    console.answer({"tables": [asdict(each) for each in found]}, lines_of(found))
    return DONE
