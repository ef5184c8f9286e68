"""The launcher with real servers, on every PostgreSQL of the machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from example_project.postgres import EmbeddedPostgres, LauncherError, accounts
from example_project.postgres.binaries import copy_binaries, find_binaries, version_of
from tests.example.postgres.conftest import INSTALLED
from tests.example.postgres.support import REPOSITORY, SMALL, ask, end, execute

pytestmark = pytest.mark.slow
# Waits for a line, starts the server, prints its pid, and lives until its input ends.
OWNER = """
import sys
from example_project.postgres import EmbeddedPostgres
server = EmbeddedPostgres(sys.argv[1], {"shared_buffers": "16MB"}, durable=False)
print("ready", flush=True)
sys.stdin.readline()
server.start()
print(server.pid, flush=True)
sys.stdin.read()
"""


def run_owner(base: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(base)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        start_new_session=True,
    )
    assert answer_of(process) == "ready"
    return process


def answer_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def send_line(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("fresh", INSTALLED, indirect=True, ids=version_of)
def test_the_server_is_as_described(server):
    url = server.start()
    pid = server.pid
    assert pid is not None
    assert url == server.url
    assert EmbeddedPostgres(server.home.parent).start() == url  # once more
    assert server.pid == pid
    assert ask(url, "SHOW server_version").split()[0] == server.version
    assert ask(url, "SHOW data_directory") == str(server.data_directory)
    assert ask(url, "SELECT current_user || '/' || current_database()") == (
        "delayed_queue/delayed_queue"
    )
    assert ask(url, "SHOW listen_addresses") == "127.0.0.1"
    assert ask(url, "SHOW shared_buffers") == "16MB"
    assert ask(url, "SHOW jit") == ask(url, "SHOW fsync") == "off"
    assert ask(url, "SHOW server_encoding") == "UTF8"
    assert ask(url, "SELECT 'B' < 'a'") is True  # by code point, under every LANG
    # The socket needs no password; TCP does.
    assert ask(server.socket_url, "SELECT 1") == 1
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url, password="wrong")
    assert server.home.joinpath("password").stat().st_mode & 0o777 == 0o600
    assert server.socket_directory.stat().st_mode & 0o777 == 0o700


def test_a_stopped_server_returns_with_its_rows_and_on_its_port_if_that_is_free(server):
    url = server.start()
    execute(url, "CREATE TABLE kept AS SELECT 7 AS value")
    with psycopg.connect(url):  # a connection does not keep it from stopping
        assert server.stop() is True
    assert server.stop() is False
    assert server.pid is None
    assert server.url == url
    assert server.start() == url
    assert ask(url, "SELECT value FROM kept") == 7
    server.stop()
    with socket.create_server(("127.0.0.1", int((server.home / "port").read_text()))):
        after = server.start()  # the port is taken
    assert after != url
    assert ask(after, "SELECT 1") == ask(server.socket_url, "SELECT 1") == 1


def test_processes_at_once_start_one_server(fresh, base):
    with contextlib.ExitStack() as stack:
        owners = [run_owner(base) for _ in range(4)]
        for owner in owners:
            stack.callback(end, owner)
        for owner in owners:
            send_line(owner)
        pids = {answer_of(owner) for owner in owners}
    assert pids == {str(fresh.pid)}


def test_the_server_outlives_its_killed_owner(server, base):
    owner = run_owner(base)
    send_line(owner)
    pid = int(answer_of(owner))
    os.killpg(owner.pid, signal.SIGKILL)
    end(owner)
    assert server.pid == pid
    assert ask(server.start(), "SELECT 1") == 1


def test_a_killed_postmaster_is_replaced_and_committed_rows_are_there(server):
    durable = EmbeddedPostgres(server.home.parent, SMALL)
    url = durable.start()
    execute(url, "CREATE TABLE kept AS SELECT generate_series(1, 1000)")
    busy = psycopg.connect(url)
    # A busy backend outlives its postmaster, with the shared memory.
    busy.pgconn.send_query(b"SELECT count(*) FROM generate_series(1, 5000000)")
    pid = durable.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert durable.start() == url
    assert durable.pid != pid
    assert ask(url, "SELECT count(*) FROM kept") == 1000
    busy.close()


@pytest.mark.parametrize("kind", ["recycled", "zombie"])
def test_a_pid_of_another_process_is_neither_trusted_nor_signalled(server, kind):
    server.start()
    server.stop()
    account = accounts.server_account(server.data_directory)
    program = ["cat"] if kind == "recycled" else ["true"]
    uid = account.uid if account else None  # PostgreSQL ignores the pid of another account
    with subprocess.Popen(program, stdin=subprocess.PIPE, user=uid) as other:
        if kind == "zombie":
            os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        lines = [
            other.pid,
            server.data_directory,
            1700000000,
            5432,
            "",
            "localhost",
            "1 2",
            "ready",
        ]
        port = (server.home / "port").read_text()
        for file in ("data/postmaster.pid", f"socket/.s.PGSQL.{port}.lock"):
            (server.home / file).write_text("\n".join(map(str, lines)))
        assert server.pid is None
        assert server.stop() is False
        assert ask(server.start(), "SELECT 1") == 1
        assert server.pid != other.pid
        assert kind == "zombie" or other.poll() is None


def test_an_unfinished_initdb_is_done_again(fresh):
    leftover = fresh.home / "data.new"
    leftover.mkdir(parents=True)
    fresh.home.parent.chmod(0o755)
    (leftover / "PG_VERSION").touch()
    assert ask(fresh.start(), "SELECT 1") == 1
    assert not leftover.exists()


def test_a_socket_directory_of_another_account_is_refused(fresh):
    fresh.home.mkdir(parents=True)
    fresh.socket_directory.mkdir(mode=0o755)
    with pytest.raises(LauncherError, match="belongs to another account"):
        fresh.start()


def test_a_server_that_cannot_start_shows_its_log(server):
    broken = EmbeddedPostgres(server.home.parent, {"no_such_parameter": 1}, durable=False)
    with pytest.raises(LauncherError, match='unrecognized configuration parameter "no_such'):
        broken.start()
    assert ask(server.start(), "SELECT 1") == 1


@pytest.mark.skipif(not accounts.is_root(), reason="only root hands the server to an account")
def test_programs_the_account_cannot_reach_are_copied(base, monkeypatch):
    closed = base / "closed"
    closed.mkdir()
    hidden = copy_binaries(find_binaries(), closed / "site-packages")
    closed.chmod(0o700)
    monkeypatch.setenv("DELAYED_QUEUE_PG_BIN", str(hidden))
    server = EmbeddedPostgres(base / "data", SMALL, durable=False)
    try:
        assert ask(server.start(), "SELECT 1") == 1
        assert server.start() == EmbeddedPostgres(base / "data").start()
    finally:
        server.stop()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert (server.home / "binaries").is_dir()


@pytest.mark.skipif(not accounts.is_root(), reason="only root hands the server to an account")
def test_a_directory_the_account_cannot_reach_is_named_and_left_closed(base):
    base.chmod(0o700)
    with pytest.raises(LauncherError, match=f"who must reach {base}"):
        EmbeddedPostgres(base, SMALL, durable=False).start()
    assert base.stat().st_mode & 0o777 == 0o700
