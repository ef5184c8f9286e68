"""O5: whoever keeps deleted messages from being cleaned away is named, with what would end it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
import pytest

from delayed_queue.observe.snapshots import OLD_TRANSACTIONS
from example_project.postgres import EmbeddedPostgres
from tests.support.processes import ROOT, wait_until
from tests.support.servers import environment_on, private_server, standby_of

Connection = psycopg.Connection[Any]
FEEDBACK: Final = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
# Each round is a transaction of its own that writes.
BURN: Final = """
CREATE TABLE burnt (i int);
DO $$ BEGIN
    FOR i IN 1..%s LOOP
        BEGIN
            INSERT INTO burnt VALUES (1);
            RAISE division_by_zero;
        EXCEPTION WHEN division_by_zero THEN
        END;
    END LOOP;
END $$
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    with private_server(max_prepared_transactions=5, wal_level="replica") as server:
        yield server


def health(server: EmbeddedPostgres, seconds: int = 1) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "manage.py", "queuehealth", "--max-snapshot-age", str(seconds)],
        cwd=ROOT,
        env=environment_on(server.socket_url),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def is_named(server: EmbeddedPostgres, *words: str) -> bool:
    code, text = health(server)
    return code == 1 and all(each in text for each in words)


@contextmanager
def connected(server: EmbeddedPostgres, **options: Any) -> Iterator[Connection]:
    with closing(psycopg.connect(server.socket_url, **options)) as connection:
        yield connection


def test_nobody_is_named_where_nobody_holds_one(server: EmbeddedPostgres) -> None:
    with connected(server, autocommit=True) as idle:
        idle.execute("SELECT 1")
        assert health(server, 0) == (0, "healthy\n")


@pytest.mark.parametrize(
    "statement", ["SELECT count(*) FROM delayed_queue", "CREATE TABLE written (i int)"]
)
def test_a_transaction_that_stays_open(server: EmbeddedPostgres, statement: str) -> None:
    with connected(server, application_name="report") as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute(statement.encode())
        pid = holder.info.backend_pid
        expected = (f"session {pid} (report, user", "idle in transaction)", "rows)")
        wait_until(lambda: is_named(server, *expected))
        _, text = health(server)
        [remedy] = [line for line in text.splitlines() if line.strip().startswith("ends it")]
        assert remedy.endswith(f"SELECT pg_terminate_backend({pid});")
        # Old is as old as the operator says.
        assert health(server, 3600) == (0, "healthy\n")
        with connected(server, autocommit=True) as operator:
            operator.execute(remedy.partition(": ")[2].encode())
    wait_until(lambda: health(server) == (0, "healthy\n"))


def test_a_transaction_of_another_database_is_none_of_ours(server: EmbeddedPostgres) -> None:
    with connected(server, dbname="postgres") as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        assert health(server, 0) == (0, "healthy\n")


def test_a_vacuum_holds_up_nobody(server: EmbeddedPostgres) -> None:
    with (
        connected(server, autocommit=True) as vacuuming,
        connected(server, autocommit=True) as other,
    ):
        vacuuming.execute(
            "CREATE TABLE large AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)"
        )
        vacuuming.execute("SET vacuum_cost_delay = '100ms'; SET vacuum_cost_limit = 1")
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(vacuuming.execute, "VACUUM large")
            seen = (
                "SELECT 1 FROM pg_stat_progress_vacuum JOIN pg_stat_activity USING (pid) "
                "WHERE backend_xmin IS NOT NULL"
            )
            try:
                wait_until(lambda: other.execute(seen).fetchall())
                assert health(server, 0) == (0, "healthy\n")
                assert not ended.done()
            finally:
                vacuuming.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                ended.result()


def test_a_prepared_transaction(server: EmbeddedPostgres) -> None:
    with connected(server) as preparing:
        preparing.execute("CREATE TABLE prepared (i int)")
        preparing.execute("PREPARE TRANSACTION 'it''s forgotten'")
    wait_until(lambda: is_named(server, "prepared transaction it's forgotten"))
    _, text = health(server)
    remedy = text.rpartition("ends it: ")[2].strip()
    assert remedy == "ROLLBACK PREPARED 'it''s forgotten';"
    with connected(server, autocommit=True) as operator:
        operator.execute(remedy.encode())
    assert health(server, 0) == (0, "healthy\n")


@pytest.mark.long
@pytest.mark.parametrize("slot", ["", "replica_1"])
def test_a_standby_with_feedback_and_its_slot(slot: str) -> None:
    """Of them the server knows no beginning: they are old after so many transactions."""
    with private_server() as primary:
        parameters = dict(FEEDBACK)
        if slot:
            parameters["primary_slot_name"] = slot
            with connected(primary, autocommit=True) as operator:
                operator.execute(f"SELECT pg_create_physical_replication_slot('{slot}')".encode())
        with standby_of(primary, **parameters) as standby, connected(standby) as reader:
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT 1")
            assert health(primary, 0) == (0, "healthy\n")
            with connected(primary, autocommit=True) as writer:
                writer.execute((BURN % OLD_TRANSACTIONS).encode())
            named = f"replication slot {slot} (active)" if slot else "standby "
            wait_until(lambda: is_named(primary, named))
            _, text = health(primary)
            if slot:
                assert f"SELECT pg_drop_replication_slot('{slot}');" in text
            else:
                assert (
                    "ends it on the standby: ALTER SYSTEM SET hot_standby_feedback = off;" in text
                )
