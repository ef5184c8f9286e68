"""Archives of one table by two processes: one goes on, the other changes nothing (P8)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from delayed_queue import DelayedQueue
from delayed_queue.spark.jobs.tables import ArchiveLost, Manifest, Manifests, Table
from delayed_queue.spark.models import ArchiveManifest
from tests.support.concurrency import calling, raw_connection, wait_until_blocked

NOTES = Table("notes", age="at")


def plan(manifests: Manifests) -> Manifest:
    return manifests.plan(NOTES, ("1", "9"), 0, 9, "lake")


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


def test_who_lost_the_archive_deletes_nothing(
    first: Manifests, admin: psycopg.Connection[Any]
) -> None:
    planned = plan(first)
    first.advance(planned, "staged", rows=9)
    first.advance(planned, "published")
    ArchiveManifest.objects.update(holder="another:1:x")
    admin.execute("CREATE TABLE notes (id bigint)")
    try:
        admin.execute("INSERT INTO notes VALUES (1)")

        def delete() -> int:
            return first.connection.execute("DELETE FROM notes").rowcount

        with pytest.raises(ArchiveLost, match="taken over"):
            first.pruned(planned, delete)
        assert admin.execute("SELECT count(*) FROM notes").fetchone() == (1,)
        with pytest.raises(ArchiveLost):
            first.advance(planned, "pruned")
        ArchiveManifest.objects.update(holder=first.holder)
        assert first.pruned(planned, delete) == 1
        assert ArchiveManifest.objects.get().deleted == 1
    finally:
        admin.execute("DROP TABLE notes")


def test_each_step_comes_from_the_one_before(first: Manifests) -> None:
    planned = plan(first)
    planned.state = "staged"
    with pytest.raises(ArchiveLost):
        first.advance(planned, "published")
    assert ArchiveManifest.objects.get().state == "planned"
