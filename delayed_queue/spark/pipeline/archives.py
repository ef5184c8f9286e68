"""``archive``: moves old rows of a table to Parquet; deletes only rows of checked files.

planned → written → pruned: each state is saved in the manifest before the next step starts. A run
first finishes an archive that an earlier run has left. A row is deleted only if its key and digest
were read from a file whose checksum is the manifest's. Rows pass only through executors.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import to_milliseconds
from delayed_queue.queue.store.finishing import finish_step
from delayed_queue.spark.database import (
    Connection,
    check_database,
    database_now,
    fetch,
    outlasting,
    steady,
)
from delayed_queue.spark.pipeline.cli import DONE, add_partitions, duration, given, whole
from delayed_queue.spark.pipeline.console import Console, aligned
from delayed_queue.spark.pipeline.files import files_on
from delayed_queue.spark.pipeline.manifests import (
    ArchivedFile,
    ArchiveLost,
    Manifest,
    Manifests,
    Pruning,
    Sums,
    checksum_of,
    locked,
    sums,
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

# The manifest's connection, and the one that locks the table.
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

    def work() -> None:
        with steady() as connection:
            layout = Layout.of(connection, table)
            if options.is_dry_run:
                found.waiting = layout.count(connection, options.cutoff)
                return
            with locked(table.source, console.progress):
                Archive(spark, options, console, connection, layout, found).run()

    outlasting(work, console.progress)
    return found


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
        layout: Layout,
        found: Archived,
    ) -> None:
        self._spark = spark
        self._options = options
        self._console = console
        self._layout = layout
        self._manifests = Manifests(connection)
        self._files = files_on(spark)
        self._found = found

    def run(self) -> None:
        """Finish an archive that an earlier run has left; then archive what is old now."""
        self._resume()
        destination = self._options.destination.rstrip("/")
        for ranges in self._portions():
            manifest = self._manifests.plan(self._found.source, destination)
            self.prune(self.write(manifest, ranges))

    def _resume(self) -> None:
        manifest = self._manifests.unfinished(self._found.source)
        if manifest is None:
            return
        self._console.progress(
            f"resuming the archive in {manifest.path}, which is {manifest.state}"
        )
        if manifest.state == "planned":
            self._files.delete(manifest.path)
            self._manifests.drop(manifest)
        else:
            self.prune(manifest)

    def _portions(self) -> list[Sequence[Range]]:
        """Return the ranges of rows that are old enough, in parts of at most ``--rows`` rows."""
        options, tasks = self._options, tasks_of(self._spark)
        ranges = self._layout.ranges(
            self._manifests.connection, options.cutoff, options.rows_per_file, tasks
        )
        most = options.rows_per_archive or max(_ROWS, TASKS_EACH * tasks * options.rows_per_file)
        step = max(most // max(ranges[0].rows, 1), 1) if ranges else 1
        return [ranges[begin : begin + step] for begin in range(0, len(ranges), step)]

    # Steps

    def write(self, manifest: Manifest, ranges: Sequence[Range]) -> Manifest:
        """Write the rows to files, and read the files back; return the written manifest."""
        self._console.progress(f"{manifest.source}: writing to {manifest.path} …")
        read = self._write_files(manifest.path, ranges)
        files = self.read_back(manifest.path)
        if sum((each.sums for each in files), Sums()) != read:
            raise InvalidConfiguration(
                f"The files in {manifest.path} do not have the rows that were read. Nothing was "
                "deleted; archive again."
            )
        try:
            return self._manifests.save_files(manifest, files)
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
        return Sums(**read.get)

    def read_back(self, path: str) -> list[ArchivedFile]:
        """Return the files, with the sums of the rows in each."""
        from pyspark.sql.functions import col

        back = self._read(path)
        found = back.groupBy(col(_FILE).alias("file")).agg(*sums(back.columns)).collect()
        read = {name: Sums(*figures) for name, *figures in found}
        return [
            ArchivedFile(name, size, **asdict(read.get(name, Sums())))
            for name, size in self._files.sizes(path)
        ]

    def prune(self, manifest: Manifest) -> None:
        """Delete the rows that are in the files, and save their outcome."""
        known = [(each.name, each.size) for each in manifest.files]
        if self._files.sizes(manifest.path) != known:
            raise _altered(manifest.path)
        changed = self._delete_rows(manifest)
        if manifest.source == KNOWN["dead-letters"].source:
            # Batches may have waited for them.
            fetch(self._manifests.connection, *finish_step(None))
        self._manifests.finish(manifest, changed)
        deleted = manifest.rows - changed
        self._console.progress(f"{deleted:,} rows of {manifest.source} deleted")
        self._found.archives += 1
        self._found.rows += manifest.rows
        self._found.deleted += deleted
        self._found.changed += changed
        self._found.paths.append(manifest.path)

    def _delete_rows(self, manifest: Manifest) -> int:
        """Let a task for each file check it, and delete its rows; return how many stay."""
        files = {each.name: each.sums for each in manifest.files if each.rows}
        pruning = Pruning(self._layout, files, self._options.batch_size)
        back = self._read(manifest.path)
        rows = back.selectExpr(
            "id AS key", f"`{DIGEST}` AS digest",
            f"{checksum_of(back.columns)} AS checksum", f"{_FILE} AS file",
        )  # fmt: skip
        if self._options.partitions is not None:
            rows = rows.coalesce(self._options.partitions)
        with uncut(self._spark, is_wanted=True):
            found = rows.mapInArrow(pruning, "file string, changed bigint").collect()
        changed: dict[str, int | None] = dict(found)
        if wrong := sorted(name for name in files if changed.get(name) is None):
            raise _altered(manifest.path, wrong)
        return sum(stay or 0 for stay in changed.values())

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
    add("--to", dest="destination", required=True, metavar="PATH", help="directory of the archives")
    add("--only", action="append", default=[], metavar="COLUMN=VALUE,…", help="only these rows")
    add("--rows", dest="rows_per_archive", type=whole, metavar="N",
        help="rows of one archive; default: three files for each task, at least a million"
    )  # fmt: skip
    add("--rows-per-file", type=whole, default=100_000, metavar="N")
    add("--batch-size", type=whole, default=5_000, metavar="N", help="rows deleted at a time")
    add("--dry-run", dest="is_dry_run", action="store_true", help="count the rows, write nothing")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    only = parse_only(options.only)
    asked = given(
        ArchiveOptions, options,
        tables=tuple(replace(table_named(each), only=only) for each in options.tables),
        cutoff=to_milliseconds(database_now() - options.older_than),
    )  # fmt: skip
    with session(settings, console, "archive", is_verbose=options.verbose) as spark:
        found = run(spark, asked, console)
    console.answer({"tables": [asdict(each) for each in found]}, lines_of(found))
    return DONE
