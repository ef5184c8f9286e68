"""O5: holders of old snapshots are named, with the statement that would end them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from io import StringIO
from typing import Any, Final

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from psycopg.conninfo import conninfo_to_dict

from delayed_queue.observe.snapshots import OLD_TRANSACTIONS
from delayed_queue.observe.store import OLDEST_SNAPSHOT, SNAPSHOT_COST
from example_project.postgres import EmbeddedPostgres
from tests.support.processes import wait_until
from tests.support.servers import private_server, standby_of

Connection = psycopg.Connection[Any]
FEEDBACK: Final = {"hot_standby_feedback": "on", "wal_receiver_status_interval": "1s"}
# The worker that scanned "gone" is silent.
WORKERS: Final = """
INSERT INTO delayed_queue_worker (
    name, host, pid, queues, version, "startedAt", "heartbeatAt", scanned, "scanSeconds"
)
SELECT scanned, 'host', 1, '[]', '1', 0, now - silent, scanned, seconds
FROM (VALUES ('mails', 0.1, 0), ('orders', 0.154, 9000), ('gone', 9, 90000), ('', 0, 0))
    AS worker (scanned, seconds, silent),
    (SELECT extract(epoch FROM now())::bigint * 1000 AS now) AS clock
"""
OFFER: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt"
)
SELECT n, 'dead', '', 0, 0, 0 FROM generate_series(1, %(rows)s) AS n
"""
# Each round is its own transaction, with a write.
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
def server(django_db_blocker: Any) -> Iterator[EmbeddedPostgres]:
    with (
        django_db_blocker.unblock(),
        private_server(max_prepared_transactions=5, wal_level="replica") as server,
    ):
        yield server


def health(server: EmbeddedPostgres, seconds: int = 1) -> tuple[int, str]:
    """Run the probe against that server; return its exit code and its output."""
    there = conninfo_to_dict(server.socket_url)
    parts = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
    out, code = StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        for name, part in parts.items():
            patch.setitem(connection.settings_dict, name, there[part])
        try:
            call_command("queuehealth", "--max-snapshot-age", str(seconds), stdout=out)
        except SystemExit as stopped:
            code = int(stopped.code or 0)
    return code, out.getvalue()


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
        expected = (f"session {pid} (report, user", "idle in transaction)")
        wait_until(lambda: is_named(server, *expected))
        _, text = health(server)
        [remedy] = [line for line in text.splitlines() if line.strip().startswith("to end it")]
        assert remedy.endswith(f"SELECT pg_terminate_backend({pid});")
        # The operator chooses the age that counts as old.
        assert health(server, 3600) == (0, "healthy\n")
        with connected(server, autocommit=True) as operator:
            operator.execute(remedy.partition(": ")[2].encode())
    wait_until(lambda: health(server) == (0, "healthy\n"))


def test_what_a_claim_takes_that_passes_the_dead_rows_is_told_where_there_are_many(server):
    with connected(server) as holder, connected(server, autocommit=True) as writer:
        writer.execute(WORKERS)
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        cost = ", a claim from the start of orders takes 154 ms"
        for more, rows, said in ((10, "10", ""), (1_490, "1,500", cost)):
            writer.execute(OFFER, {"rows": more})
            writer.execute("DELETE FROM delayed_queue")
            writer.execute("SELECT pg_stat_force_next_flush()")
            holds = f"session {holder.info.backend_pid}"
            told = f"cannot vacuum deleted messages ({rows} rows{said}): {holds}"
            wait_until(partial(is_named, server, told))
        writer.execute("DELETE FROM delayed_queue_worker")


def test_a_transaction_of_another_database_is_none_of_ours(server: EmbeddedPostgres) -> None:
    with connected(server, dbname="postgres") as other:
        other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        assert health(server, 0) == (0, "healthy\n")


def test_one_that_writes_in_another_database_keeps_our_rows(server: EmbeddedPostgres) -> None:
    """No snapshot is taken beyond it, so rows deleted after its start stay for any of ours."""
    with (
        connected(server, dbname="postgres", application_name="batch") as other,
        connected(server) as reader,
        connected(server, autocommit=True) as ours,
    ):
        other.execute("CREATE TABLE elsewhere (i int)")
        ours.execute("CREATE TABLE IF NOT EXISTS gone AS SELECT 1 AS i")
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        notices: list[str] = []
        ours.add_notice_handler(lambda each: notices.append(each.message_primary or ""))
        ours.execute("DELETE FROM gone")
        ours.execute("VACUUM VERBOSE gone")
        assert any("1 are dead but not yet removable" in each for each in notices) or any(
            "1 dead row versions cannot be removed yet" in each for each in notices
        )
        pid = other.info.backend_pid
        wait_until(lambda: is_named(server, f"session {pid} (batch, user", "database postgres"))
        other.rollback()
    wait_until(lambda: health(server) == (0, "healthy\n"))


def test_a_prepared_transaction_of_another_database(server: EmbeddedPostgres) -> None:
    with connected(server, dbname="postgres") as other:
        other.execute("CREATE TABLE elsewhere (i int)")
        other.execute("PREPARE TRANSACTION 'it''s far away'")
    wait_until(
        lambda: is_named(server, "prepared transaction it's far away (user", "database postgres")
    )
    _, text = health(server)
    assert "to end it in the database postgres: ROLLBACK PREPARED 'it''s far away';" in text
    with connected(server, dbname="postgres", autocommit=True) as operator:
        operator.execute("ROLLBACK PREPARED 'it''s far away'")


def test_sessions_that_the_role_may_not_see_are_counted(server: EmbeddedPostgres) -> None:
    with connected(server, autocommit=True) as operator, connected(server) as holder:
        operator.execute("CREATE ROLE watching LOGIN")
        operator.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO watching")
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        with connected(server, user="watching", autocommit=True) as watching:
            hidden = watching.execute(SNAPSHOT_COST, {"now": None}).fetchall()[0][-1]
            assert hidden == 2
            operator.execute("GRANT pg_read_all_stats TO watching")
        with connected(server, user="watching", autocommit=True) as watching:
            assert watching.execute(SNAPSHOT_COST, {"now": None}).fetchall()[0][-1] == 0


def test_of_two_that_are_alike_the_writer_is_named_that_the_other_inherited_it_from(server):
    with (
        connected(server) as reading,
        connected(server) as writing,
        connected(server, autocommit=True) as ours,
    ):
        reading.execute("SELECT 1")
        writing.execute("CREATE TABLE inherited (i int)")
        ours.execute("SELECT txid_current()")
        reading.execute("DECLARE rows CURSOR FOR SELECT 1")
        [(holder, name, *_)] = ours.execute(OLDEST_SNAPSHOT).fetchall()
        assert (holder, name) == ("session", str(writing.info.backend_pid))


def test_the_age_of_a_snapshot_of_one_statement_is_that_of_the_statement(server):
    """At READ COMMITTED a transaction takes a new snapshot for each statement."""
    ages = (
        "SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, "
        "extract(epoch FROM clock_timestamp() - query_start)::float8 "
        "FROM pg_stat_activity WHERE pid = %s AND backend_xmin IS NOT NULL AND state = 'active'"
    )
    with connected(server) as reading, connected(server, autocommit=True) as ours:
        pid = reading.info.backend_pid
        reading.execute("SELECT 1")
        began_at = time.monotonic()
        wait_until(lambda: time.monotonic() - began_at > 0.5)
        with ThreadPoolExecutor(1) as thread:
            ended = thread.submit(reading.execute, "SELECT pg_sleep(60)")
            try:
                wait_until(lambda: ours.execute(ages, [pid]).fetchall())
                [(_, name, *_, seconds, _)] = ours.execute(OLDEST_SNAPSHOT).fetchall()
                [(of_transaction, of_statement)] = ours.execute(ages, [pid]).fetchall()
            finally:
                reading.cancel()
            with pytest.raises(psycopg.errors.QueryCanceled):
                ended.result()
    assert name == str(pid)
    assert of_transaction > of_statement + 0.4
    assert seconds <= of_statement


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


@pytest.mark.long
@pytest.mark.parametrize("slot", ["", "replica_1"])
def test_a_standby_with_feedback_and_its_slot(slot: str) -> None:
    """The server has no age of theirs: the number of transactions decides."""
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
            named = f"replication slot {slot} (active)" if slot else "standby "
            with connected(primary, autocommit=True) as writer:
                writer.execute((BURN % OLD_TRANSACTIONS).encode())
            wait_until(lambda: is_named(primary, named))
            _, text = health(primary)
            if slot:
                assert f"SELECT pg_drop_replication_slot('{slot}');" in text
            else:
                assert (
                    "to end it on the standby: ALTER SYSTEM SET hot_standby_feedback = off;" in text
                )
