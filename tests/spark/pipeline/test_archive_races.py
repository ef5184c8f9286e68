"""Archives of one table by two processes: one continues, the other changes nothing (P8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from delayed_queue.spark.database import steady
from delayed_queue.spark.models import ArchiveFile, ArchiveManifest
from delayed_queue.spark.pipeline.files import Sums
from delayed_queue.spark.pipeline.manifests import (
    ALTERED,
    LOST,
    ArchivedFile,
    ArchiveLost,
    Manifest,
    Manifests,
    Pruning,
)
from delayed_queue.spark.pipeline.tables import KNOWN, Layout
from delayed_queue.spark.store.archiving import COUNT_BATCH
from tests.spark.pipelines import letters
from tests.support.concurrency import calling, raw_connection, wait_until_blocked
from tests.support.processes import wait_until


def plan(manifests: Manifests) -> Manifest:
    return manifests.plan("notes", "lake")


@pytest.fixture
def first(queue: DelayedQueue, other: psycopg.Connection[Any]) -> Manifests:
    return Manifests(other)


def test_of_two_that_plan_at_once_one_archives(
    first: Manifests, admin: psycopg.Connection[Any]
) -> None:
    def late() -> Manifest:
        from django.db import connection

        return plan(Manifests(connection.connection))

    with first.connection.transaction():
        planned = plan(first)
        with calling(late) as second:
            wait_until_blocked(admin, second)
            first.connection.execute("COMMIT; BEGIN")
            with pytest.raises(ArchiveLost, match="Another process"):
                second.answer()
    assert ArchiveManifest.objects.get().holder == planned.holder == first.holder


def test_of_two_that_take_over_one_holds(first: Manifests, admin: psycopg.Connection[Any]) -> None:
    with raw_connection() as gone:
        plan(Manifests(gone, lease_ms=0))
    found = first.unfinished("notes")
    assert found is not None

    def late() -> bool:
        from django.db import connection

        mine = Manifests(connection.connection)
        seen = mine.unfinished("notes")
        assert seen is not None
        return mine.hold(seen)

    with first.connection.transaction():
        assert first.hold(found)
        with calling(late) as second:
            wait_until_blocked(admin, second)
            first.connection.execute("COMMIT; BEGIN")
            assert second.answer() is False
    assert ArchiveManifest.objects.get().holder == first.holder


def test_an_archive_that_is_held_is_left_alone(first: Manifests) -> None:
    planned = plan(first)
    planned.holder = "elsewhere:1:x"
    with raw_connection() as connection:
        assert not Manifests(connection).hold(planned)
    ArchiveManifest.objects.update(holder="elsewhere:1:x")
    assert not first.hold(planned)


LETTERS = """
SELECT id AS key, md5(letter::text) AS digest, hashtextextended(letter::text, 0) AS checksum
FROM delayed_queue_dead_letter AS letter
ORDER BY id
"""
HOLD_LETTER = """SELECT FROM delayed_queue_dead_letter WHERE "pKey" = %s FOR UPDATE"""


@pytest.fixture
def task(first: Manifests) -> Task:
    """A task of a written archive: ten letters, in batches of four."""
    letters(10)
    table = KNOWN["dead-letters"]
    layout = Layout.of(first.connection, table)
    manifest = first.plan(table.source, "lake")
    with steady() as connection:
        keys, digests, hashes = zip(*connection.execute(LETTERS).fetchall(), strict=True)
    rows = pa.table({"key": keys, "digest": digests, "checksum": hashes})
    total = sum((Sums(1, each) for each in hashes), Sums(0, 0))
    first.save_files(manifest, [ArchivedFile("a", 1, total)])
    return Task(Pruning(layout, manifest.id, first.holder, 4), rows)


@dataclass(frozen=True)
class Task:
    pruning: Pruning
    rows: pa.Table

    def __call__(self, name: str = "a") -> str:
        return self.pruning.prune(name, self.rows)


def became() -> tuple[int, int, int]:
    """Return the numbers of the file's rows that are done, deleted, changed."""
    found: tuple[int, int, int] = ArchiveFile.objects.values_list(
        "position", "deleted", "changed"
    ).get()
    return found


def blocked(observer: psycopg.Connection[Any], number: int) -> bool:
    """True if ``number`` sessions of this database wait for others."""
    observer.execute("SELECT pg_stat_clear_snapshot()")
    found = observer.execute(
        """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"""
    ).fetchone()
    return found == (number,)


def test_a_file_is_done_once(task: Task) -> None:
    assert task() == ""
    assert became() == (10, 10, 0)
    letters(10)
    assert task() == ""
    assert became() == (10, 10, 0)
    assert DeadLetter.objects.count() == 10


@pytest.mark.parametrize("held", ["k0", "k5"])
def test_twins_of_a_task_count_each_batch_once(
    task: Task, held: str, admin: psycopg.Connection[Any]
) -> None:
    DeadLetter.objects.filter(key="k6").update(reason="looked at")
    with ThreadPoolExecutor(2) as pool, admin.transaction():
        admin.execute(HOLD_LETTER, [held])
        twins = [pool.submit(task) for _ in range(2)]
        wait_until(lambda: blocked(admin, 2))
        admin.execute("COMMIT; BEGIN")
        assert [each.result() for each in twins] == ["", ""]
    assert became() == (10, 9, 1)
    assert DeadLetter.objects.get().key == "k6"


def test_who_lost_the_archive_deletes_nothing(task: Task) -> None:
    ArchiveManifest.objects.update(holder="another:1:x")
    assert task() == LOST
    assert (became(), DeadLetter.objects.count()) == ((0, 0, 0), 10)


def test_who_loses_the_archive_while_it_deletes_takes_the_batch_back(
    task: Task, first: Manifests, admin: psycopg.Connection[Any]
) -> None:
    with ThreadPoolExecutor(1) as pool, admin.transaction():
        admin.execute(HOLD_LETTER, ["k5"])
        late = pool.submit(task)
        wait_until(lambda: blocked(admin, 1))
        ArchiveManifest.objects.update(held_until=datetime(2020, 1, 1, tzinfo=UTC))
        with raw_connection() as connection:
            found = first.unfinished("delayed_queue_dead_letter")
            assert found is not None
            later = Manifests(connection)
            assert later.hold(found)
        admin.execute("COMMIT; BEGIN")
        assert late.result() == LOST
    assert (became(), DeadLetter.objects.count()) == ((4, 4, 0), 6)
    # The new holder continues from there.
    assert replace(task, pruning=replace(task.pruning, holder=later.holder))() == ""
    assert became() == (10, 10, 0)


def test_who_takes_an_archive_over_waits_for_a_batch_that_is_counted(
    task: Task, first: Manifests, other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
) -> None:
    """A renewal by the same owner waits for it, too."""
    found = first.unfinished("delayed_queue_dead_letter")
    assert found is not None
    batch = {"id": found.id, "holder": first.holder, "name": "a", "from": 0, "to": 4,
             "deleted": 4, "changed": 0}  # fmt: skip

    def take() -> bool:
        from django.db import connection

        return Manifests(connection.connection).hold(found)

    ArchiveManifest.objects.update(held_until=datetime(2020, 1, 1, tzinfo=UTC))
    with other.transaction():
        assert other.execute(COUNT_BATCH, batch).fetchall() == [(4,)]
        with calling(take) as later:
            wait_until_blocked(admin, later)
            other.execute("COMMIT; BEGIN")
            assert later.answer()
    assert other.execute(COUNT_BATCH, {**batch, "from": 4, "to": 8}).fetchall() == []


def test_a_file_that_holds_other_rows_is_left_alone(task: Task) -> None:
    altered = task.rows.set_column(2, "checksum", pa.array(range(10), pa.int64()))
    for rows in (altered, task.rows.slice(1), pa.concat_tables([task.rows, task.rows.slice(9)])):
        assert replace(task, rows=rows)() == ALTERED
    assert task("b") == ALTERED
    assert (became(), DeadLetter.objects.count()) == ((0, 0, 0), 10)


def test_what_changed_is_counted_once_however_often_it_is_begun(task: Task) -> None:
    DeadLetter.objects.filter(key="k1").update(reason="looked at")
    DeadLetter.objects.filter(key="k2").delete()
    (manifest,) = ArchiveManifest.objects.all()
    batch = {"id": manifest.pk, "name": "a", "holder": manifest.holder, "from": 0, "to": 4}
    with steady() as connection:
        assert task.pruning._delete_batch(connection, batch, task.rows.slice(0, 4))  # noqa: SLF001
        assert not task.pruning._delete_batch(connection, batch, task.rows.slice(0, 4))  # noqa: SLF001
    assert became() == (4, 2, 1)
    assert task() == ""
    assert became() == (10, 8, 1)


def test_each_step_comes_from_the_one_before(first: Manifests) -> None:
    planned = plan(first)
    planned.state = "written"
    with pytest.raises(ArchiveLost):
        first.finish(planned, deleted=0, changed=0)
    assert ArchiveManifest.objects.get().state == "planned"
    planned.state = "planned"
    first.save_files(planned, [])
    with pytest.raises(ArchiveLost):
        first.drop(planned)
    assert ArchiveManifest.objects.get().state == "written"
