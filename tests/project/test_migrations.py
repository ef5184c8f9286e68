"""The migrations in new databases: names, storage, other schemas, many processes (Q35)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from typing import Any, Final

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, migrations
from django.db.migrations import Migration
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.test import override_settings
from psycopg import sql as composed

from delayed_queue import DelayedQueue, DeliveryType
from delayed_queue.worker.engine.database import compatibility, our_labels
from tests.rolling.settings import MIGRATION_MODULES
from tests.support.answers import only_row, polled, present, sqlstate_of
from tests.support.concurrency import TIMEOUT, raw_connection
from tests.support.processes import wait_until
from tests.support.sampling import sample

# Operations invisible to older releases: new tables, and indexes built concurrently.
ADDITIONS: Final = (
    migrations.CreateModel, migrations.AddIndex, migrations.RunSQL, migrations.AlterModelOptions,
)  # fmt: skip
APPS: Final = ("delayed_queue", "delayed_queue_http", "delayed_queue_spark")
TABLES: Final = [
    "delayed_queue",
    "delayed_queue_dead_letter",
    "delayed_queue_schedule",
    "delayed_queue_schedule_run",
    "delayed_queue_worker",
    "delayed_queue_limit",
    "delayed_queue_endpoint",
    "delayed_queue_host",
    "delayed_queue_slot",
    "delayed_queue_callback_attempt",
    "delayed_queue_rate",
]

# The seed's columns, in its order: name, type, length, whether NULL is allowed.
SEED_COLUMNS: Final = [
    ("id", "bigint", None, "NO"),
    ("pKey", "character varying", 200, "NO"),
    ("pKind", "character varying", 100, "NO"),
    ("payload", "bytea", None, "NO"),
    ("scheduledAt", "bigint", None, "NO"),
    ("scheduledAtInitially", "bigint", None, "NO"),
    ("lockUuid", "character varying", 36, "YES"),
    ("createdAt", "bigint", None, "NO"),
]
# Its indexes by name: uniqueness, and leading columns.
SEED_INDEXES: Final = {
    "delayed_queue__PKeyPlusKindUniqueIndex": (True, ["pKey", "pKind"]),
    "delayed_queue__KindPlusScheduledAtIndex": (False, ["pKind", "scheduledAt"]),
    "delayed_queue__LockUuidPlusIdIndex": (False, ["lockUuid", "id"]),
}
STORAGE: Final = {
    "fillfactor=70",
    "autovacuum_vacuum_scale_factor=0.01",
    "autovacuum_vacuum_threshold=1000",
    "autovacuum_vacuum_insert_scale_factor=0.05",
    "autovacuum_vacuum_cost_delay=0",
    "autovacuum_analyze_scale_factor=0.05",
    "autovacuum_analyze_threshold=1000",
    "vacuum_truncate=false",
}

# All objects that a migration creates in the first schema of the search path, as text.
SCHEMA: Final = """
SELECT format('%s.%s %s null=%s default=%s collate=%s', table_name, column_name, data_type,
        is_nullable, column_default, collation_name)
FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name LIKE 'delayed\\_queue%'
UNION ALL
SELECT indexdef FROM pg_indexes
WHERE schemaname = current_schema() AND tablename LIKE 'delayed\\_queue%'
UNION ALL
SELECT format('%s %s %s', conrelid::regclass, conname, pg_get_constraintdef(pg_constraint.oid))
FROM pg_constraint
JOIN pg_class ON pg_class.oid = conrelid
WHERE relnamespace = current_schema()::regnamespace AND relname LIKE 'delayed\\_queue%'
UNION ALL
SELECT format('%s with %s', relname, reloptions) FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relname LIKE 'delayed\\_queue%'
ORDER BY 1
"""
INDEXES: Final = """
SELECT
    class.relname,
    indisunique,
    (SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute WHERE attrelid = indexrelid)
FROM pg_index
JOIN pg_class AS class ON class.oid = indexrelid
WHERE indrelid = 'delayed_queue'::regclass
"""

# Waits at the gate after it has found the missing migrations, as all others do.
MIGRATE: Final = """
import json, sys
import django
django.setup()
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
connection.settings_dict.update(json.loads(sys.stdin.readline()))
executor = MigrationExecutor(connection)
apps = ("delayed_queue", "delayed_queue_http", "delayed_queue_spark")
targets = [leaf for app in apps for leaf in executor.loader.graph.leaf_nodes(app)]
assert executor.migration_plan(targets)
print("ready", flush=True)
sys.stdin.readline()
executor.migrate(targets)
"""


@pytest.fixture(scope="module")
def scratch(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The name of a database beside the test database."""
    with django_db_blocker.unblock():
        server = connection.copy()
        server.connect()
    name = f"{server.settings_dict['NAME']}_migrations"
    identifier = composed.Identifier(name)
    drop = composed.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier)
    server.connection.execute(drop)
    server.connection.execute(composed.SQL("CREATE DATABASE {}").format(identifier))
    yield name
    server.connection.execute(drop)
    server.close()


@pytest.fixture
def empty(transactional_db: None, scratch: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to that empty database, which Django uses too."""
    found = connection.settings_dict
    kept = dict(found)
    connection.close()
    found["NAME"] = scratch
    with raw_connection() as other:
        other.execute("DROP SCHEMA IF EXISTS tenant CASCADE")
        other.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        yield other
    connection.close()
    found |= kept


@pytest.fixture
def migrated(empty: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    migrate()
    return empty


def migrate(*target: str) -> None:
    """Migrate the package's apps; backwards the core also reverts its dependents."""
    for app in ["delayed_queue"] if target else APPS:
        call_command("migrate", app, *target, verbosity=0)


def schema(connection: psycopg.Connection[Any]) -> list[str]:
    return [row[0] for row in connection.execute(SCHEMA)]


def options(connection: psycopg.Connection[Any]) -> set[str]:
    row = connection.execute(
        "SELECT reloptions FROM pg_class WHERE oid = 'delayed_queue'::regclass"
    )
    return set(only_row(row)[0] or ())


def test_the_models_have_their_migrations(db: None):
    call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)


def test_forwards_backwards_forwards(empty: psycopg.Connection[Any]):
    migrate()
    forwards = schema(empty)
    migrate("zero")
    backwards = schema(empty)
    migrate()

    assert any(line.startswith("delayed_queue.pKey") for line in forwards)
    assert backwards == []
    assert schema(empty) == forwards


def test_columns_and_indexes_are_the_seeds(migrated: psycopg.Connection[Any]):
    columns = migrated.execute(
        "SELECT column_name, data_type, character_maximum_length, is_nullable"
        " FROM information_schema.columns WHERE table_name = 'delayed_queue'"
        " ORDER BY ordinal_position"
    ).fetchall()
    indexes = {name: (unique, names) for name, unique, names in migrated.execute(INDEXES)}

    assert columns[: len(SEED_COLUMNS)] == SEED_COLUMNS
    for name, (is_unique, names) in SEED_INDEXES.items():
        assert indexes[name][0] is is_unique
        assert indexes[name][1][: len(names)] == names


def test_a_service_that_names_only_the_eight_columns_can_insert(migrated):
    """The lock column too, which the seed's own INSERT omits."""
    migrated.execute(
        'INSERT INTO delayed_queue ("id", "pKey", "pKind", "payload", "scheduledAt",'
        ' "scheduledAtInitially", "lockUuid", "createdAt")'
        " VALUES (1000, 'theirs', 'shared|text', 'hello', 5, 5, NULL, 5)"
    )

    envelope = polled(DelayedQueue("shared", codec="text"))

    assert (envelope.key, envelope.payload, envelope.attempt) == ("theirs", "hello", 1)
    assert envelope.delivery_type is DeliveryType.FIRST
    assert envelope.acknowledge()


def test_storage_parameters_are_set_and_reset(migrated: psycopg.Connection[Any]):
    first = import_module("delayed_queue.migrations.0001_initial")

    assert options(migrated) == STORAGE
    migrated.execute(first.NO_STORAGE)
    assert options(migrated) == set()


@pytest.fixture
def tenant(empty: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """A schema before the public one in the search path, which holds foreign tables."""
    for table in TABLES:
        empty.execute(f"CREATE TABLE public.{table} (other text)")
    empty.execute("CREATE SCHEMA tenant")
    empty.execute("SET search_path = tenant, public")
    kept = connection.settings_dict["OPTIONS"]
    connection.settings_dict["OPTIONS"] = {**kept, "options": "-c search_path=tenant,public"}
    connection.close()
    yield empty
    connection.close()
    connection.settings_dict["OPTIONS"] = kept


def test_tables_of_these_names_in_another_schema_do_not_fool_it(tenant):
    migrate()
    made = schema(tenant)
    queue = DelayedQueue("tenants")
    queue.offer_or_update("key", "payload")
    stats = queue.stats()
    migrate("zero")

    assert any(line.startswith("delayed_queue.pKey") for line in made)
    assert "delayed_queue.other" not in "\n".join(made)
    assert stats.due == 1
    assert schema(tenant) == []
    assert tenant.execute("SELECT other FROM public.delayed_queue").fetchall() == []


def tell(process: subprocess.Popen[str], line: str) -> None:
    stdin = present(process.stdin)
    stdin.write(line + "\n")
    stdin.flush()


def start_one(settings: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a process that migrates; return when it is at the gate."""
    process = subprocess.Popen(
        [sys.executable, "-c", MIGRATE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    tell(process, json.dumps(settings))
    return process


def waiting() -> int:
    """Return the number of processes of this database that wait for another."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0"
        )
        return int(only_row(cursor)[0])


@pytest.mark.parametrize("count", sample([3, 8], 3))
def test_processes_at_once_all_succeed(empty: psycopg.Connection[Any], count: int):
    """Each has found all migrations missing, and works, before one can finish."""
    call_command("migrate", "auth", verbosity=0)
    settings = {name: connection.settings_dict[name] for name in ("NAME", "HOST", "PORT")}

    with ExitStack() as stack:
        processes = [stack.enter_context(start_one(settings)) for _ in range(count)]
        assert [present(process.stdout).readline() for process in processes] == ["ready\n"] * count
        with empty.transaction(force_rollback=True):
            # An uncommitted table of that name: another CREATE TABLE must wait for it.
            empty.execute("CREATE TABLE delayed_queue ()")
            for process in processes:
                tell(process, "go")
            wait_until(lambda: waiting() == count)
        errors = [process.communicate()[1] for process in processes]

    assert [
        (process.returncode, error) for process, error in zip(processes, errors, strict=True)
    ] == [(0, "")] * count
    at_once = schema(empty)
    empty.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    migrate()
    assert schema(empty) == at_once
    assert options(empty) == STORAGE


def test_a_migration_does_not_wait_long_for_a_table_in_use(migrated: psycopg.Connection[Any]):
    """It fails as a whole, because later statements would wait, too."""
    for app in APPS[1:]:  # each app has its own migration and transaction
        call_command("migrate", app, "zero", verbosity=0)
    before = schema(migrated)
    with connection.cursor() as cursor:  # replaces the default, which never times out
        cursor.execute("SET lock_timeout = '60s'")
    started = time.monotonic()

    with migrated.transaction():
        migrated.execute("SELECT FROM delayed_queue")
        with pytest.raises(OperationalError) as caught:
            migrate("zero")

    assert time.monotonic() - started < 50
    assert sqlstate_of(caught.value) == "55P03"
    assert schema(migrated) == before


def test_a_migration_waits_for_its_turn(empty: psycopg.Connection[Any]):
    """This wait has no short limit: the other migration may take its time."""
    turn = "SELECT pg_advisory_xact_lock(hashtextextended('delayed_queue.migrations', 0))"

    def migrate_and_close() -> None:
        try:
            migrate()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        with empty.transaction():
            empty.execute(turn)
            migration = pool.submit(migrate_and_close)
            wait_until(lambda: waiting() == 1)
            assert schema(empty) == []
        migration.result(TIMEOUT)

    assert options(empty) == STORAGE


def migrations_of(label: str) -> list[Migration]:
    """Return an app's migrations in their order."""
    found = MigrationLoader(None).disk_migrations
    return [found[each] for each in sorted(found) if each[0] == label]


def only_adds(operation: Operation) -> bool:
    """True if an older release can still write; raw SQL is the author's responsibility."""
    if isinstance(operation, migrations.AddField):
        field = operation.field
        return bool(field.null or field.has_db_default() or field.many_to_many)
    return isinstance(operation, ADDITIONS)


def misnamed(found: list[Migration]) -> list[str]:
    """Return the names that promise more than their operations keep."""
    wrong, number = [], 1
    for each in found[1:]:
        said = compatibility(each.name)
        if said is None or not (
            said == number + 1 or (said == number and all(map(only_adds, each.operations)))
        ):
            wrong.append(each.name)
        number = said or number
    return wrong


@pytest.mark.parametrize("modules", [{}, MIGRATION_MODULES], ids=["this release", "the next"])
def test_o16_the_name_of_a_migration_says_who_can_work_after_it(modules: dict[str, str]) -> None:
    with override_settings(MIGRATION_MODULES=modules):
        found = [migrations_of(label) for label in our_labels()]
    assert all(each[0].name == "0001_initial" for each in found)
    assert [misnamed(each) for each in found] == [[]] * len(found)
