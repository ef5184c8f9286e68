"""Archives of one table by two processes: one waits, or changes nothing (P8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.models import DeadLetter
from delayed_queue.spark.database import steady
from delayed_queue.spark.models import ArchiveManifest
from delayed_queue.spark.pipeline.manifests import (
    ArchivedFile,
    ArchiveLost,
    Manifest,
    Manifests,
    Pruning,
    Sums,
    locked,
)
from delayed_queue.spark.pipeline.tables import KNOWN, Layout
from tests.spark.pipelines import letters
from tests.support.concurrency import calling, wait_until_blocked
from tests.support.processes import wait_until

LETTERS = """
SELECT id AS key, md5(letter::text) AS digest, hashtextextended(letter::text, 0) AS checksum
FROM delayed_queue_dead_letter AS letter
ORDER BY id
"""
HOLD_LETTER = """SELECT FROM delayed_queue_dead_letter WHERE "pKey" = %s FOR UPDATE"""
# The session that holds the lock of an archive.
LOCKING = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"


def plan(manifests: Manifests) -> Manifest:
    return manifests.plan("notes", "lake")


@pytest.fixture
def first(queue: DelayedQueue, other: psycopg.Connection[Any]) -> Manifests:
    return Manifests(other)


@pytest.mark.parametrize("is_cut", [False, True], ids=["released", "cut"])
def test_a_second_process_waits_for_the_first(is_cut: bool, first: Manifests) -> None:
    said: list[str] = []

    def late() -> bool:
        with locked("notes", said.append):
            return bool(said)

    with ThreadPoolExecutor(1) as pool:
        with locked("notes", said.append), locked("others", said.append):
            assert not said
            second = pool.submit(late)
            wait_until(lambda: bool(said))
            if is_cut:
                for (pid,) in first.connection.execute(LOCKING).fetchall():
                    first.connection.execute("SELECT pg_terminate_backend(%s)", [pid])
                assert second.result()
        assert second.result()


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
    assert ArchiveManifest.objects.get().pk == planned.id


def test_each_step_comes_from_the_one_before(first: Manifests) -> None:
    planned = plan(first)
    with pytest.raises(ArchiveLost):
        first.finish(replace(planned, state="written"), 0)
    written = first.save_files(planned, [])
    assert first.unfinished("notes") == written
    with pytest.raises(ArchiveLost):
        first.drop(planned)
    first.finish(written, 0)
    with pytest.raises(ArchiveLost):
        first.finish(written, 0)
    assert ArchiveManifest.objects.get().state == "pruned"


@pytest.fixture
def task(first: Manifests) -> Task:
    """A task of a written archive: ten letters, in batches of four."""
    letters(10)
    layout = Layout.of(first.connection, KNOWN["dead-letters"])
    with steady() as connection:
        keys, digests, hashes = zip(*connection.execute(LETTERS).fetchall(), strict=True)
    rows = pa.table({"key": keys, "digest": digests, "checksum": hashes})
    total = sum((Sums(1, each) for each in hashes), Sums())
    return Task(Pruning(layout, {"a": total}, 4), rows)


@dataclass(frozen=True)
class Task:
    pruning: Pruning
    rows: pa.Table

    def __call__(self, name: str = "a") -> int | None:
        return self.pruning.prune(name, self.rows)


def blocked(observer: psycopg.Connection[Any], number: int) -> bool:
    """True if ``number`` sessions of this database wait for others."""
    observer.execute("SELECT pg_stat_clear_snapshot()")
    found = observer.execute(
        """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"""
    ).fetchone()
    return found == (number,)


def test_deleting_again_changes_nothing(task: Task) -> None:
    """Rows that have changed stay, and count each time; rows that were deleted are no loss."""
    DeadLetter.objects.filter(key="k1").update(reason="looked at")
    DeadLetter.objects.filter(key="k2").delete()
    assert task() == task() == 1
    letters(10)
    assert task() == 1
    assert DeadLetter.objects.count() == 11


@pytest.mark.parametrize("held", ["k0", "k5"])
def test_twins_of_a_task_delete_each_row_once(
    task: Task, held: str, admin: psycopg.Connection[Any]
) -> None:
    DeadLetter.objects.filter(key="k6").update(reason="looked at")
    with ThreadPoolExecutor(2) as pool, admin.transaction():
        admin.execute(HOLD_LETTER, [held])
        twins = [pool.submit(task) for _ in range(2)]
        wait_until(lambda: blocked(admin, 2))
        admin.execute("COMMIT; BEGIN")
        assert [each.result() for each in twins] == [1, 1]
    assert DeadLetter.objects.get().key == "k6"


def test_a_file_that_holds_other_rows_is_left_alone(task: Task) -> None:
    altered = task.rows.set_column(2, "checksum", pa.array(range(10), pa.int64()))
    for rows in (altered, task.rows.slice(1), pa.concat_tables([task.rows, task.rows.slice(9)])):
        assert replace(task, rows=rows)() is None
    assert task("b") is None
    assert DeadLetter.objects.count() == 10


def test_files_are_saved_as_they_are(first: Manifests) -> None:
    """A checksum has 64 bits."""
    files = [ArchivedFile("a", 1, 2, 2**63 - 1), ArchivedFile("b", 2, 3, -(2**63))]
    first.save_files(plan(first), files)
    found = first.unfinished("notes")
    assert found is not None
    assert (found.files, found.rows) == (files, 5)
