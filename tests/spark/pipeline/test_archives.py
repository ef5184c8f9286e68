"""``archive`` and ``replay`` on a session of Spark in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow.parquet as pq
import pytest
from django.db import connection

from delayed_queue import DelayedQueue, ScheduledMessage
from delayed_queue.exceptions import InvalidConfiguration, TooManyConnections
from delayed_queue.models import DeadLetter, Message
from delayed_queue.spark.models import ArchiveManifest
from delayed_queue.spark.pipeline import archives, replays
from delayed_queue.spark.pipeline.manifests import ArchiveLost, Manifest
from delayed_queue.spark.pipeline.offers import Spread
from delayed_queue.spark.pipeline.tables import KNOWN, Layout, Table
from delayed_queue.spark.settings import VARIABLE
from delayed_queue.spark.store.archiving import READ_OLD
from example_project.postgres.server import EmbeddedPostgres
from tests.spark.archiver import STEPS, arm
from tests.spark.pipelines import CONSOLE, archive, holding, letters
from tests.spark.support import is_waiting_for, with_jvm
from tests.support.answers import polled
from tests.support.processes import wait_until
from tests.support.sampling import sample
from tests.support.servers import crash, private_server

pytestmark = with_jvm

CUT_OTHERS = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND NOT pid = ANY (%s)
"""
CUT_DELETING = """
SELECT pg_terminate_backend(pid)
FROM pg_stat_activity
WHERE datname = current_database() AND NOT pid = ANY (%s) AND query LIKE '%%DELETE FROM%%'
"""
# The lock that blocks each step.
LOCKS = {"read": "", "deleted": " IN SHARE MODE"}
MOMENTS = {"read": "planned", "deleted": "written"}
MANY_LETTERS = """
INSERT INTO delayed_queue_dead_letter (
    "pKind", "pKey", payload, attempts, reason, "scheduledAtInitially", "createdAt", "diedAt"
)
SELECT 'orders|json', 'k' || n, '1', 3, 'rejected', 0, 0, n
FROM generate_series(1, %(count)s) AS n
"""
# Spark runs two tasks at a time.
WAITING = """
SELECT count(*)
FROM pg_locks
WHERE NOT granted AND relation = 'delayed_queue_dead_letter'::regclass
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def alter(part: Path) -> None:
    """Change a value of a row, and nothing else."""
    rows = pq.read_table(part)
    reasons = ["another", *rows["reason"].to_pylist()[1:]]
    place = rows.schema.get_field_index("reason")
    pq.write_table(rows.set_column(place, "reason", [reasons]), part)
    part.with_name(f".{part.name}.crc").unlink(missing_ok=True)


def same_size(manifest: Manifest) -> Manifest:
    """Return the manifest as if changed files could keep their sizes."""
    found = [
        replace(each, size=Path(manifest.path, each.name).stat().st_size) for each in manifest.files
    ]
    named = [asdict(each) for each in found]
    ArchiveManifest.objects.filter(pk=manifest.id).update(files=named)
    return replace(manifest, files=found)


def remove(part: Path) -> None:
    part.unlink()


def add(part: Path) -> None:
    part.with_name("part-one-more.parquet").write_bytes(part.read_bytes())


def restart(server: EmbeddedPostgres, holder: psycopg.Connection[Any]) -> None:
    """Crash the server when two tasks wait for the holder's lock, and restart it."""
    with closing(holder), psycopg.connect(server.socket_url, autocommit=True) as watcher:
        wait_until(lambda: watcher.execute(WAITING).fetchone() == (2,))
        crash(server)
    server.start()


@contextmanager
def waiting(spark: Any, lake: str, url: str) -> Iterator[tuple[Any, Future[Any], Any]]:
    """Archive fifty letters, until a task waits for a held one; yield pool, archive and holder."""
    letters(50)
    with ThreadPoolExecutor(2) as pool, holding(url, "k25") as holder:
        running = pool.submit(archive, spark, lake, rows_per_file=20, batch_size=4)
        wait_until(lambda: is_waiting_for(holder))
        yield pool, running, holder


@pytest.fixture
def notes(queue: DelayedQueue, other: psycopg.Connection[Any]) -> Iterator[Callable[..., Any]]:
    """Create a table of a hundred notes; drop it at the end."""
    yield lambda kind, key: other.execute(NOTES.format(kind=kind, key=key))
    other.execute("DROP TABLE spark_notes")


KEYS = {"uuid": "md5(n::text)::uuid", "bigint": "-n * 7919"}
NOTES = """
CREATE TABLE spark_notes AS
SELECT {key} AS id, n AS number, to_timestamp(n) AS at,
    CASE WHEN n % 2 = 0 THEN '100%' ELSE 'other' END AS text, NULL::numeric AS nothing
FROM generate_series(1, 100) AS n;
ALTER TABLE spark_notes ALTER id SET DATA TYPE {kind}, ADD PRIMARY KEY (id)
"""


def elsewhere(figures: str, lake: str) -> tuple[Any, ...]:
    """Query the files by another engine than their writer."""
    counted = duckdb.execute(f"SELECT {figures} FROM read_parquet(?)", [f"{lake}/*/*/*.parquet"])  # noqa: S608
    found: tuple[Any, ...] = counted.fetchall()[0]
    return found


def parquet_files(lake: str) -> list[Path]:
    return list(Path(lake).glob("*/archive=*/*.parquet"))


class TestArchiveAndReplay:
    """P8 and P10."""

    def test_a_replayed_archive_equals_the_original(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        letters(100)
        DeadLetter.objects.create(
            kind="orders|json", key="young", payload=b"1", attempts=1, reason="rejected",
            scheduled_at_initially=datetime.now(UTC), created_at=datetime.now(UTC),
            died_at=datetime.now(UTC),
        )  # fmt: skip
        original = {
            each.key: (bytes(each.payload), each.headers)
            for each in DeadLetter.objects.exclude(key="young")
        }
        found = archive(spark, lake, rows_per_archive=60, rows_per_file=25, batch_size=7)
        assert (found.rows, found.deleted, found.changed, found.archives) == (100, 100, 0, 2)
        assert [each.key for each in DeadLetter.objects.all()] == ["young"]
        path = f"{lake}/delayed_queue_dead_letter"

        asked = replays.ReplayOptions((path,), spread=Spread.of(over=timedelta(hours=2)))
        replayed = replays.run(spark, asked, CONSOLE)

        assert replayed.created == replayed.input == 100
        stored = {each.key: (bytes(each.payload), each.headers) for each in Message.objects.all()}
        assert stored == original
        spans = [each.scheduled_at - each.created_at for each in Message.objects.all()]
        # From the start of the replay, a moment before the first offer.
        assert timedelta(seconds=-30) < min(spans) < timedelta(minutes=20)
        assert timedelta(minutes=100) < max(spans) < timedelta(hours=2)
        queue.drop_all_messages("Yes, please, I know what I'm doing!")
        assert replays.run(spark, asked, CONSOLE).was_done
        assert Message.objects.count() == 0  # a repeated replay changes nothing

    def test_replays_what_the_filters_choose_under_new_keys(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        letters(9)
        archive(spark, lake)
        asked = replays.ReplayOptions(
            (f"{lake}/delayed_queue_dead_letter",),
            kinds=("orders|json",),
            since=datetime(2026, 1, 2, 0, 0, 2, tzinfo=UTC),
            until=datetime(2026, 1, 2, 0, 0, 8, tzinfo=UTC),
            error="ValueError",
            keys="suffix",
            job="second",
        )
        assert replays.run(spark, replace(asked, is_dry_run=True), CONSOLE).input == 4
        assert Message.objects.count() == 0
        assert replays.run(spark, asked, CONSOLE).created == 4
        keys = set(Message.objects.values_list("key", flat=True))
        assert keys == {f"k{n}~second" for n in (2, 4, 5, 7)}

    def test_b10_batches_that_waited_for_archived_letters_finish(
        self, queue: DelayedQueue, spark: Any, lake: str
    ) -> None:
        reports = DelayedQueue("reports")
        then = ScheduledMessage("then", 1)
        with queue.batch(then, then_queue=reports, on_dead="wait") as batch:
            batch.offer_or_update("a", 1)
        assert polled(queue).reject("bad")
        DeadLetter.objects.update(died_at=datetime(2026, 1, 2, tzinfo=UTC))
        assert not reports.contains_message("then")
        assert archive(spark, lake).deleted == 1
        assert reports.contains_message("then")

    def test_a_letter_that_changed_since_stays_and_one_redriven_is_no_loss(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(10)
        write = archives.Archive.write

        def meddle(self: Any, manifest: Any, ranges: Any) -> Any:
            written = write(self, manifest, ranges)
            DeadLetter.objects.filter(key="k3").update(reason="looked at")
            DeadLetter.objects.filter(key="k4").delete()
            monkeypatch.setattr(archives.Archive, "write", write)
            return written

        monkeypatch.setattr(archives.Archive, "write", meddle)
        found = archive(spark, lake)
        assert (found.archives, found.rows, found.deleted, found.changed) == (1, 10, 9, 1)
        # The next command archives its current content.
        assert [each.key for each in DeadLetter.objects.all()] == ["k3"]
        assert archive(spark, lake).deleted == 1

    @pytest.mark.parametrize("how", sample([alter, remove, add], alter))
    def test_files_that_are_not_those_of_the_manifest_delete_nothing(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch,
        how: Callable[[Path], None],
    ) -> None:  # fmt: skip
        letters(10)
        write = archives.Archive.write

        def damage(self: Any, manifest: Any, ranges: Any) -> Any:
            written = write(self, manifest, ranges)
            how(next(Path(manifest.path).glob("*.parquet")))
            return written if how is not alter else same_size(written)

        monkeypatch.setattr(archives.Archive, "write", damage)
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake)
        monkeypatch.undo()
        # The next command refuses them too.
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake)
        assert DeadLetter.objects.count() == 10

    @pytest.mark.parametrize("how", sample([alter, remove, add], add))
    def test_rows_that_are_not_those_that_were_read_are_seen(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch,
        how: Callable[[Path], None],
    ) -> None:  # fmt: skip
        letters(30)
        read_back = archives.Archive.read_back

        def damage(self: Any, staging: str) -> Any:
            how(min(Path(staging).glob("*.parquet")))
            return read_back(self, staging)

        monkeypatch.setattr(archives.Archive, "read_back", damage)
        with pytest.raises(InvalidConfiguration, match="do not have the rows that were read"):
            archive(spark, lake, rows_per_file=10)
        assert DeadLetter.objects.count() == 30
        monkeypatch.undo()
        assert archive(spark, lake).deleted == 30

    def test_a_process_that_lost_its_archive_removes_its_files(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another process has dropped the plan, and archives the same rows."""
        letters(5)
        read_back = archives.Archive.read_back

        def lose(self: Any, path: str) -> Any:
            ArchiveManifest.objects.all().delete()
            return read_back(self, path)

        monkeypatch.setattr(archives.Archive, "read_back", lose)
        with pytest.raises(ArchiveLost):
            archive(spark, lake)
        assert parquet_files(lake) == []
        assert DeadLetter.objects.count() == 5

    def test_a_file_that_vanishes_before_its_rows_are_deleted_keeps_them(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(30)
        delete_rows = archives.Archive._delete_rows  # noqa: SLF001
        vanished: list[int] = []

        def vanish(self: Any, manifest: Any) -> int:
            part = min(parquet_files(lake))
            vanished.extend(pq.read_table(part)["id"].to_pylist())
            part.unlink()
            return delete_rows(self, manifest)

        monkeypatch.setattr(archives.Archive, "_delete_rows", vanish)
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake, rows_per_file=10)
        monkeypatch.undo()
        assert set(DeadLetter.objects.values_list("id", flat=True)) == {*vanished}
        assert len(vanished) == 10
        with pytest.raises(InvalidConfiguration, match="not those that were written"):
            archive(spark, lake)

    @pytest.mark.parametrize("kind", sample(KEYS, "uuid"))
    def test_another_engine_counts_the_same(
        self, kind: str, notes: Callable[..., Any], spark: Any, lake: str,
        other: psycopg.Connection[Any],
    ) -> None:  # fmt: skip
        notes(kind, KEYS[kind])
        sums = other.execute("SELECT count(*), sum(number) FROM spark_notes").fetchone()
        table = Table("spark_notes", "at", {"text": ["100%", "other"]})
        asked = archives.ArchiveOptions(
            (table,), 2**42, lake, rows_per_archive=60, rows_per_file=7, batch_size=3, partitions=2
        )
        (found,) = archives.run(spark, asked, CONSOLE)
        left = other.execute("SELECT count(*) FROM spark_notes").fetchone()
        assert (found.rows, found.deleted, found.changed, found.archives) == (100, 100, 0, 2)
        assert left == (0,)
        assert elsewhere("count(*), sum(number), count(DISTINCT id)", lake) == (*(sums or ()), 100)
        # Each of two tasks writes one file.
        assert len(parquet_files(lake)) == 4

    @pytest.mark.parametrize("kind", KEYS)
    def test_each_row_is_in_one_range(
        self, kind: str, notes: Callable[..., Any], other: psycopg.Connection[Any]
    ) -> None:
        notes(kind, KEYS[kind])
        layout = Layout.of(other, Table("spark_notes", "at"))
        read = [
            other.execute(
                layout.statement(READ_OLD, each), {**each._asdict(), "cutoff": 2**42}
            ).fetchall()
            for each in layout.ranges(other, 2**42, 7, 2)
        ]
        assert (len(read), {len(rows) for rows in read}) == (15, {6, 7})
        assert len({row[0] for rows in read for row in rows}) == 100

    @pytest.mark.parametrize("step", sample(STEPS, "written"))
    def test_connections_that_are_cut_end_nothing(
        self, step: str, queue: DelayedQueue, spark: Any, lake: str,
        other: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        letters(50)
        original = set(DeadLetter.objects.values_list("id", flat=True))
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            ours = [other.info.backend_pid, cursor.fetchone()[0]]
        cut: list[int] = []

        def happen() -> None:
            cut.append(len(other.execute(CUT_OTHERS, [ours]).fetchall()))

        arm(step, happen, monkeypatch.setattr)
        found = archive(spark, lake, rows_per_file=20, batch_size=10)

        assert len(cut) == 1
        assert cut[0] >= 1
        assert (found.archives, found.rows, found.deleted, found.changed) == (1, 50, 50, 0)
        assert not DeadLetter.objects.exists()
        assert ArchiveManifest.objects.get().state == "pruned"
        rows = spark.read.parquet(f"{lake}/delayed_queue_dead_letter").collect()
        assert sorted(row["id"] for row in rows) == sorted(original)

    def test_connections_of_tasks_that_are_cut_end_nothing(
        self, queue: DelayedQueue, spark: Any, lake: str, known: str,
        other: psycopg.Connection[Any],
    ) -> None:  # fmt: skip
        with waiting(spark, lake, known) as (_, running, holder):
            ours = [holder.info.backend_pid, other.info.backend_pid]
            assert other.execute(CUT_DELETING, [ours]).fetchall()
            holder.rollback()
            found = running.result()
        assert (found.archives, found.rows, found.deleted, found.changed) == (1, 50, 50, 0)
        assert not DeadLetter.objects.exists()

    def test_of_two_drivers_one_waits_for_the_other(
        self, queue: DelayedQueue, spark: Any, lake: str, known: str
    ) -> None:
        with waiting(spark, lake, known) as (pool, first, holder):
            second = pool.submit(archive, spark, lake, rows_per_file=20, batch_size=4)
            holder.rollback()
            assert (first.result().deleted, second.result().deleted) == (50, 0)
        assert not DeadLetter.objects.exists()
        manifest = ArchiveManifest.objects.get()
        assert (manifest.state, manifest.rows, manifest.deleted) == ("pruned", 50, 50)
        assert elsewhere("count(*), count(DISTINCT id)", lake) == (50, 50)

    def test_a_driver_whose_archive_was_finished_fails(
        self, queue: DelayedQueue, spark: Any, lake: str, known: str
    ) -> None:
        """Another one had the lock, after the first had lost it while its tasks delete."""
        with waiting(spark, lake, known) as (_, first, holder):
            ArchiveManifest.objects.update(state="pruned")
            holder.rollback()
            with pytest.raises(ArchiveLost, match="taken over"):
                first.result()
        assert not DeadLetter.objects.exists()

    @pytest.mark.long
    @pytest.mark.slow
    @pytest.mark.parametrize("step", ["read", "deleted"])
    def test_the_database_restarts_while_rows_are(
        self, step: str, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with private_server() as server, ThreadPoolExecutor(1) as pool:
            url = server.socket_url
            monkeypatch.setenv(VARIABLE, url)
            monkeypatch.setitem(spark.sparkContext.environment, VARIABLE, url)
            with psycopg.connect(url) as filling:
                filling.execute(MANY_LETTERS, {"count": 400})
            restarting: list[Future[None]] = []

            def happen() -> None:
                holder = psycopg.connect(url)
                holder.execute(f"LOCK TABLE delayed_queue_dead_letter{LOCKS[step]}")
                restarting.append(pool.submit(restart, server, holder))

            arm(MOMENTS[step], happen, monkeypatch.setattr)
            found = archive(spark, lake, rows_per_file=20, batch_size=100)
            restarting[0].result()
        assert (found.archives, found.rows, found.deleted) == (1, 400, 400)
        rows = spark.read.parquet(f"{lake}/delayed_queue_dead_letter")
        assert (rows.count(), rows.select("id").distinct().count()) == (400, 400)

    def test_room_for_its_connections_is_looked_for_before_anything_is_planned(
        self, queue: DelayedQueue, spark: Any, lake: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(1)
        monkeypatch.setattr(archives, "CONNECTIONS_OF_DRIVER", 1000)
        with pytest.raises(TooManyConnections, match="2 tasks, 1000 leases"):
            archive(spark, lake)
        assert not ArchiveManifest.objects.exists()

    def test_tables_that_cannot_be_archived(self, queue: DelayedQueue, spark: Any) -> None:
        for table, said in (
            (replace(KNOWN["dead-letters"], source="nothing"), "There is no table"),
            (replace(KNOWN["dead-letters"], only={"death": ["1"]}), "no column 'death'"),
        ):
            asked = archives.ArchiveOptions((table,), 0, "nowhere")
            with pytest.raises(InvalidConfiguration, match=said):
                archives.run(spark, asked, CONSOLE)
