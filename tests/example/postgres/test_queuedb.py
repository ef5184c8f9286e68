"""manage.py queuedb, and migrations of many processes at once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import time
import uuid

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from example_project.management.commands.migrate import LOCK, alone
from example_project.postgres import EmbeddedPostgres
from tests.example.postgres.support import REPOSITORY, ask, end, execute
from tests.support.sampling import sample

pytestmark = pytest.mark.slow


def queuedb(*arguments: str) -> str:
    output = io.StringIO()
    call_command("queuedb", *arguments, stdout=output)
    return output.getvalue()


def test_queuedb_starts_shows_and_stops(server, settings):
    settings.EMBEDDED_POSTGRES = server
    url = queuedb("start").strip()
    assert ":***@127.0.0.1:" in url
    assert f"pid: {server.status().pid}\nurl: {url}\n" in queuedb("status")
    shown = json.loads(queuedb("status", "--format", "json", "--show-password"))
    assert shown["running"] is True
    assert ask(shown["url"], "SELECT 1") == 1
    assert queuedb("stop") == "stopped\n"
    assert queuedb("stop") == "not running\n"
    with pytest.raises(SystemExit, match="3"):
        queuedb("status")


def test_queuedb_reports_a_failure_as_a_command_error(server, settings):
    broken = EmbeddedPostgres(server.home.parent, {"no_such_parameter": 1}, durable=False)
    settings.EMBEDDED_POSTGRES = broken
    with pytest.raises(CommandError, match="no_such_parameter"):
        queuedb("start")


@pytest.mark.django_db(transaction=True)
def test_queuedb_leaves_an_external_server_alone(settings, monkeypatch):
    settings.EMBEDDED_POSTGRES = None
    assert "external server: nothing to start" in queuedb("start")
    assert json.loads(queuedb("status", "--format", "json"))["running"] is True
    connection.close()
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        with pytest.raises(SystemExit, match="3"):
            queuedb("status")


@pytest.fixture
def empty_database(server: EmbeddedPostgres) -> str:
    """The URL of a database without any table."""
    url = server.start()
    name = f"empty_{uuid.uuid4().hex}"
    execute(url, f"CREATE DATABASE {name}")
    return url.removesuffix("delayed_queue") + name


@pytest.mark.parametrize("count", sample([3, 8], 3))
def test_migrates_at_once_all_succeed(empty_database, count):
    migrate = ("migrate", "delayed_queue")
    processes = [manage(*migrate, DATABASE_URL=empty_database) for _ in range(count)]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * count, outputs
    missing = manage(*migrate, "--check", DATABASE_URL=empty_database)
    assert missing.communicate()[0] == ""
    assert missing.returncode == 0


def test_migrate_waits_for_another_without_a_snapshot(empty_database):
    """The other's CREATE INDEX CONCURRENTLY would wait for a statement that waits."""
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(psycopg.connect(empty_database))
        other.execute(f"SELECT pg_advisory_xact_lock({LOCK})".encode())
        process = manage("migrate", "contenttypes", DATABASE_URL=empty_database)
        stack.callback(end, process)
        wait_for_a_failed_try(empty_database)
        execute(empty_database, "CREATE TABLE t (i int)")
        execute(empty_database, "CREATE INDEX CONCURRENTLY ON t (i)")
        assert process.poll() is None
        assert ask(empty_database, "SELECT to_regclass('django_migrations') IS NULL") is True
        other.rollback()
        output = process.communicate()[0]
        assert process.returncode == 0, output


def wait_for_a_failed_try(url: str) -> None:
    """Wait until `migrate` did not get the lock, after which it rolls back."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE query = 'ROLLBACK' AND datname = current_database()"
    )
    deadline = time.monotonic() + 30
    while ask(url, query) == 0:
        assert time.monotonic() < deadline


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("server_side", [False, True])
def test_migrate_holds_no_snapshot_while_it_has_the_lock(monkeypatch, server_side):
    """Not even through an open portal of the extended protocol."""
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "server_side_binding", server_side)
    found = "SELECT count(*), count(backend_xmin) FROM pg_stat_activity WHERE state = %s"
    with alone("default"), connection.cursor() as cursor:
        cursor.execute(f"{found} AND datname = current_database()", ["idle in transaction"])
        assert cursor.fetchone() == (1, 0)


def manage(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "example_project.settings", **environment},
    )
