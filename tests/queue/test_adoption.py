"""Q36: a table created by a service in another language is adopted, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from delayed_queue import DelayedQueue, OfferOutcome
from delayed_queue.codecs import jvm_kind
from delayed_queue.models import Message

pytestmark = pytest.mark.django_db(transaction=True)

SEED = """
CREATE TABLE "delayed_queue" (
    "id" BIGSERIAL PRIMARY KEY,
    "pKey" VARCHAR(200) NOT NULL,
    "pKind" VARCHAR(100) NOT NULL,
    "payload" BYTEA NOT NULL,
    "scheduledAt" BIGINT NOT NULL,
    "scheduledAtInitially" BIGINT NOT NULL,
    "lockUuid" VARCHAR(36) NULL,
    "createdAt" BIGINT NOT NULL
);
CREATE UNIQUE INDEX "delayed_queue__PKeyPlusKindUniqueIndex" ON "delayed_queue"("pKey", "pKind");
CREATE INDEX "delayed_queue__KindPlusScheduledAtIndex" ON "delayed_queue"("pKind", "scheduledAt");
CREATE INDEX "delayed_queue__LockUuidPlusIdIndex" ON "delayed_queue"("lockUuid", "id");
"""


@pytest.fixture(autouse=True)
def _without_our_tables() -> Iterator[None]:
    """Drop the app's tables, and restore them by the migrations."""
    call_command("migrate", "delayed_queue", "zero", verbosity=0)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS delayed_queue")
    call_command("migrate", "delayed_queue", "zero", verbosity=0)
    call_command("migrate", verbosity=0)


def test_its_rows_and_indexes_stay_and_our_columns_are_added() -> None:
    kind = jvm_kind("orders")
    with connection.cursor() as cursor:
        cursor.execute(SEED)
        cursor.execute(
            'INSERT INTO "delayed_queue" ("pKey", "pKind", "payload", "scheduledAt", '
            '"scheduledAtInitially", "createdAt") VALUES (%s, %s, %s, 1, 1, 1)',
            ["theirs", kind, b"text"],
        )
    call_command("migrate", "delayed_queue", verbosity=0)
    queue = DelayedQueue("orders", codec="text", kind=kind)
    envelope = queue.try_poll()
    assert envelope is not None
    assert (envelope.key, envelope.payload, envelope.attempt) == ("theirs", "text", 1)
    assert envelope.acknowledge()
    assert queue.offer_or_update("ours", "text") is OfferOutcome.CREATED
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexname FROM pg_indexes WHERE tablename = 'delayed_queue'")
        indexes = {name for (name,) in cursor.fetchall()}
    # Their indexes stay, and those over our columns are created.
    assert {each.name for each in Message._meta.indexes} <= indexes


def test_a_table_that_is_not_a_queue_is_refused_untouched() -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE delayed_queue (id BIGINT PRIMARY KEY, note TEXT)")
    with pytest.raises(RuntimeError, match=r"'delayed_queue' exists, but .* no column 'pKey'"):
        call_command("migrate", "delayed_queue", verbosity=0)
    columns = connection.introspection.get_table_description(
        connection.cursor(), Message._meta.db_table
    )
    assert [column.name for column in columns] == ["id", "note"]


@pytest.mark.parametrize("rows", [0, 3])
def test_a_migration_back_leaves_the_other_service_s_table_and_its_rows(rows: int) -> None:
    """Migrating back removes only the added columns; forwards restores them."""
    with connection.cursor() as cursor:
        cursor.execute(SEED)
        cursor.execute("ALTER TABLE delayed_queue ADD COLUMN headers JSONB")  # theirs, too
        cursor.execute(
            'INSERT INTO delayed_queue ("pKey", "pKind", payload, "scheduledAt", '
            '"scheduledAtInitially", "createdAt") '
            "SELECT each::text, 'theirs', 'text', 1, 1, 1 FROM generate_series(1, %s) AS each",
            [rows],
        )
        before = shape(cursor)
        for _ in range(2):
            call_command("migrate", "delayed_queue", verbosity=0)
            assert Message.objects.count() == rows
            call_command("migrate", "delayed_queue", "zero", verbosity=0)
            assert shape(cursor) == before
            cursor.execute("SELECT count(*) FROM delayed_queue WHERE payload = 'text'")
            assert cursor.fetchone() == (rows,)


def shape(cursor: Any) -> list[tuple[str, ...]]:
    """Return the columns and the indexes of the table."""
    cursor.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'delayed_queue' "
        "UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename = 'delayed_queue' ORDER BY 1"
    )
    return list(cursor.fetchall())
