"""``archive``: old rows of a table to Parquet; deleted only when what was written was checked.

planned → staged → published → pruned, each written to the manifest before the next begins. A run
first takes up what an earlier one left; nothing is deleted but rows whose key and digest were read
from files whose checksums are those of the manifest. Rows pass through executors alone.
"""

from __future__ import annotations

import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import pairwise
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
from delayed_queue.spark.pipeline.cli import (
    DONE,
    add_partitions,
    duration,
    whole,
)
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
    PIECE,
    WHOLE,
    Asking,
    Layout,
    Piece,
    Reading,
    Table,
    joined,
    named,
    parse_only,
    pieces_of,
    pieces_read,
    stretches,
)
from delayed_queue.spark.settings import TASKS_EACH, SparkSettings, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The manifest's, and the one that keeps it.
CONNECTIONS_OF_DRIVER: Final = 2
_TRIES: Final = 3
# What a crash while it is written has written again, on a small machine.
_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ArchiveOptions:
    """What ``archive`` was asked for."""

    tables: tuple[Table, ...]
    cutoff: int
    destination: str
    rows_per_archive: int | None = None
    rows_per_file: int = 100_000
    batch_size: int = 5_000
    is_dry_run: bool = False
    lease_ms: int = LEASE_MS
    partitions: int | None = None

    @property
    def rows_per_piece(self) -> int:
        """How many rows are cut off at a time: files of few are made, so that tasks have work."""
        return min(self.rows_per_file, PIECE)

    def rows_on(self, spark: SparkSession) -> int:
        """Return how many rows an archive may have: so many files that all tasks have work."""
        if self.rows_per_archive is not None:
            return self.rows_per_archive
        return max(_ROWS, TASKS_EACH * tasks_of(spark) * self.rows_per_file)


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

    def run(self) -> Archived:
        if self._options.is_dry_run:
            self._found.waiting = sum(each.rows for each in self._pieces(self._options.cutoff))
            return self._found
        self._resume()
        seen = set[tuple[str | None, str | None]]()
        while pieces := self._pieces(self._options.cutoff):
            # What changed since it was archived is archived as it is now; if it changed again, it
            # stays for the next command.
            if (ends := (pieces[0].lower, pieces[-1].upper)) in seen:
                break
            seen.add(ends)
            changed = self._found.changed
            self._archive(pieces)
            if self._found.changed == changed:
                break
        return self._found

    def _archive(self, pieces: list[Piece]) -> None:
        """Archive the pieces, so many rows at a time."""
        for some in stretches(pieces, self._options.rows_on(self._spark)):
            rows = sum(each.rows for each in some)
            manifest = self._manifests.plan(
                self._table, (str(some[0].lower), str(some[-1].upper)), self._options.cutoff, rows,
                self._options.destination.rstrip("/"),
            )  # fmt: skip
            self._finish(manifest, some)

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

    def _finish(self, manifest: Manifest, pieces: Sequence[Piece] = ()) -> None:
        """Take the archive from where it stands to its end; of a new one the pieces are known."""
        with self._kept(manifest):
            if manifest.state == "staged" and not self._is_whole(manifest):
                self._console.progress("what was staged is not whole; writing it again")
                self._manifests.advance(manifest, "planned")
            if manifest.state == "planned":
                self.stage(manifest, pieces or self._pieces_again(manifest))
            if manifest.state == "staged":
                self.publish(manifest)
            self._prune(manifest)
        self._found.archives += 1
        self._found.rows += manifest.rows or 0
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

    def stage(self, manifest: Manifest, pieces: Sequence[Piece]) -> None:
        """Write the rows to a directory of this holder's own, and read back what was written."""
        staging = f"{manifest.destination}/_staging/{manifest.id}-{self._manifests.token}"
        if manifest.staging:
            self._files.delete(manifest.staging)
        self._manifests.advance(manifest, "planned", staging=staging)
        for _ in range(_TRIES):
            self._console.progress(f"{manifest.source}: writing to {staging} …")
            read = self._write(manifest, staging, pieces)
            files, there = self._looked_at(manifest, pieces, staging, read)
            rows = sum(each.sums.rows for each in files)
            if rows > there:
                self._check_distinct(staging, rows)
            if rows >= there:
                break
        else:
            raise InvalidConfiguration(
                f"{staging} has fewer rows than {manifest.source}, {_TRIES} times in a row. "
                "Nothing was deleted. Is the age older than the longest transaction?"
            )
        self._manifests.staged(manifest, files)

    def _write(self, manifest: Manifest, staging: str, pieces: Sequence[Piece]) -> Sums:
        """Write the pieces to files; return what was read."""
        from pyspark.sql import Observation

        most = max(self._options.rows_per_file // self._options.rows_per_piece, 1)
        files = joined(pieces, most, least=tasks_of(self._spark))
        reading = Reading(self._layout_of(manifest), manifest.cutoff, tuple(files))
        rows = pieces_read(self._spark, reading, self._options.partitions)
        # Spark adds up each part once, of whatever tasks it was tried by.
        read = Observation()
        rows.observe(read, *sums(rows.columns)).write.mode("overwrite").parquet(staging)
        return Sums.of(**read.get)

    def _looked_at(
        self, manifest: Manifest, pieces: Sequence[Piece], staging: str, read: Sums
    ) -> tuple[list[ArchivedFile], int]:
        """Return the files, if what they hold is what was read, and how many rows the table has.

        Both are looked at side by side: while Spark plans the one it works on the other.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="archive-count") as pool:
            counting = pool.submit(self._there, manifest, pieces)
            written = self.read_back(staging)
            there = counting.result()
        if reduce(add, (each.sums for each in written), Sums(0, 0)) != read:
            raise InvalidConfiguration(
                f"{staging} has not the rows that were read: one is lost, there twice, or another. "
                "Nothing was deleted; archive again."
            )
        return written, there

    def read_back(self, staging: str) -> list[ArchivedFile]:
        """Return the files, and what is read back from each."""
        from pyspark.sql.functions import col

        back = self._read(staging)
        found = back.groupBy(col(_FILE).alias("file")).agg(*sums(back.columns)).collect()
        read = {name: Sums.of(*figures) for name, *figures in found}
        return [
            ArchivedFile(name, size, read.get(name, Sums(0, 0)))
            for name, size in self._files.sizes(staging)
        ]

    def _check_distinct(self, staging: str, rows: int) -> None:
        """Raise InvalidConfiguration if a row is there twice: some may have gone from the table."""
        distinct = self._read(staging).select(self._table.key, DIGEST).distinct().count()
        if distinct != rows:
            raise InvalidConfiguration(f"{staging} has rows twice. Nothing was deleted.")

    def _there(self, manifest: Manifest, pieces: Sequence[Piece]) -> int:
        """Return how many rows the table has of those that were to be written.

        Each is counted once, whatever the pieces were.
        """
        parts = joined(pieces, len(pieces) or 1, least=TASKS_EACH * tasks_of(self._spark))
        rest = [
            each._replace(lower=before.upper, is_first=False) for before, each in pairwise(parts)
        ]
        asking = Asking(self._layout_of(manifest), manifest.cutoff, (*parts[:1], *rest))
        return sum(rows for found in asking.on(self._spark) for _, rows in found)

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
        """Have the rows deleted that are in the files, and write down what became of them."""
        if not self._is_whole(manifest):
            raise _not_those(manifest.path)
        self._delete_all(manifest)
        files = self._manifests.files(manifest)
        if left := [each.name for each in files if each.left]:
            raise _not_those(manifest.path, left)
        deleted, changed = sum(each.deleted for each in files), sum(each.changed for each in files)
        self._manifests.advance(manifest, "pruned", deleted=deleted, changed=changed)
        self._found.deleted += deleted
        self._found.changed += changed
        self._console.progress(f"{deleted:,} rows of {manifest.source} deleted")

    def _delete_all(self, manifest: Manifest) -> None:
        """Have each file read by a task that checks it, then deletes its rows in batches."""
        layout = self._layout_of(manifest)
        pruning = Pruning(layout, manifest.id, self._manifests.holder, self._options.batch_size)
        back = self._read(manifest.path)
        rows = back.selectExpr(
            f"`{manifest.key}` AS key", f"`{DIGEST}` AS digest",
            f"{checksum_of(back.columns)} AS checksum", f"{_FILE} AS file",
        )  # fmt: skip
        if self._options.partitions is not None:
            rows = rows.coalesce(self._options.partitions)
        with uncut(self._spark, is_wanted=True):
            found = rows.mapInArrow(pruning, "file string, problem string").collect()
        if any(problem == LOST for _, problem in found):
            raise ArchiveLost(f"The archive {manifest.id} was taken over by another process.")
        if wrong := sorted(name for name, problem in found if problem):
            raise _not_those(manifest.path, wrong)

    # Looking

    def _pieces(
        self, cutoff: int, layout: Layout | None = None, within: Piece = WHOLE
    ) -> list[Piece]:
        """Return the rows that are old enough, in pieces of which files are made."""
        after = self._options.rows_per_piece
        return pieces_of(self._spark, layout or self._layout, cutoff, after, within)

    def _pieces_again(self, manifest: Manifest) -> list[Piece]:
        """Return the pieces of an archive that another process has planned, as they are now."""
        within = Piece(manifest.lower, manifest.upper, True, manifest.expected)
        return self._pieces(manifest.cutoff, self._layout_of(manifest), within)

    def _layout_of(self, manifest: Manifest) -> Layout:
        return Layout(manifest.table, self._layout.types)

    def _is_whole(self, manifest: Manifest) -> bool:
        """Return whether the files, wherever they are by now, are called and as large as noted.

        What they hold is looked at by whoever deletes.
        """
        path = manifest.path if self._files.exists(manifest.path) else manifest.staging
        if not self._files.exists(path):
            return False
        noted = [(each.name, each.size) for each in self._manifests.files(manifest)]
        return self._files.sizes(path) == noted

    def _read(self, path: str) -> DataFrame:
        return self._spark.read.schema(self._layout.schema).parquet(path)


def _not_those(path: str, names: Sequence[str] = ()) -> InvalidConfiguration:
    which = f" ({', '.join(names[:3])})" if names else ""
    return InvalidConfiguration(
        f"The files in {path} are not those that were written{which}: nothing of them was "
        "deleted. Put them back, or delete the row of the manifest, and archive again."
    )


_FILE: Final = "_metadata.file_name"


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("tables", nargs="*", default=["dead-letters"], metavar="TABLE",
        help="dead-letters, callback-attempts, or a table of yours")  # fmt: skip
    add("--older-than", type=duration, required=True, metavar="TIME", help="as in 30d")
    add("--to", required=True, metavar="PATH", help="where the archives are kept")
    add("--key", metavar="COLUMN", help="the primary key; default: id")
    add("--age", metavar="COLUMN", help="by which rows age; NULL never does")
    add("--only", action="append", default=[], metavar="COLUMN=VALUE,…", help="only these rows")
    add("--rows", type=whole, metavar="N",
        help="of one archive; default: three files for each task, at least a million")  # fmt: skip
    add("--rows-per-file", type=whole, default=100_000, metavar="N")
    add("--batch-size", type=whole, default=5_000, metavar="N", help="rows deleted at a time")
    add("--dry-run", action="store_true", help="count what would be archived")
    add_partitions(parser)


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:

    only = parse_only(options.only)
    tables = tuple(named(each, options.key, options.age, only) for each in options.tables)
    asked = ArchiveOptions(
        tables=tables,
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
