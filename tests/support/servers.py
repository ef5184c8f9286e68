"""A PostgreSQL server of one test, which may crash it."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Final

import psutil
from psycopg.conninfo import conninfo_to_dict

from example_project.postgres import EmbeddedPostgres
from tests.support.processes import ROOT, wait_until
from tests.support.programs import PRODUCTION

# A server crash must lose no commit; a machine crash may.
PARAMETERS: Final = {
    "shared_buffers": "32MB",
    "max_wal_size": "256MB",
    "synchronous_commit": "on",
    "fsync": "off",
}


@contextmanager
def private_server(**parameters: str | int) -> Iterator[EmbeddedPostgres]:
    """Run a server with the tables in a new directory; remove both afterwards."""
    with tempfile.TemporaryDirectory(prefix="dq-") as directory:
        Path(directory).chmod(0o755)  # the server's account needs access to it
        server = EmbeddedPostgres(directory, PARAMETERS | parameters, durable=False)
        copy_tree(template() / server.home.name, server.home)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@cache
def template() -> Path:
    """Return where a stopped server with the tables is: a copy saves `initdb` and `migrate`."""
    directory = tempfile.TemporaryDirectory(prefix="dq-")
    atexit.register(directory.cleanup)
    Path(directory.name).chmod(0o755)
    server = EmbeddedPostgres(directory.name, PARAMETERS, durable=False)
    server.start()
    try:
        migrate(server.socket_url)
    finally:
        server.stop()
    return Path(directory.name)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a tree with its owners, which shutil does not keep."""
    subprocess.run(["/bin/cp", "-a", str(source), str(target)], check=True)


@contextmanager
def standby_of(primary: EmbeddedPostgres, **parameters: str) -> Iterator[EmbeddedPostgres]:
    """Run a standby that follows the server; remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="dq-") as directory:
        Path(directory).chmod(0o755)  # the server's account needs access to it
        parameters = {"shared_buffers": "32MB", **parameters}
        standby = EmbeddedPostgres(directory, parameters, durable=False)
        standby.data_directory.mkdir(mode=0o700, parents=True)
        owner = primary.data_directory.stat()
        os.chown(standby.data_directory, owner.st_uid, owner.st_gid)
        shutil.copy(primary.password_file, standby.password_file)
        found = conninfo_to_dict(primary.socket_url)
        primary.run(
            "pg_basebackup", "-h", str(found["host"]), "-p", str(found["port"]),
            "-U", str(found["user"]), "-D", str(standby.data_directory), "-c", "fast", "-R",
        )  # fmt: skip
        standby.start()
        try:
            yield standby
        finally:
            standby.stop()


def environment_on(url: str) -> dict[str, str]:
    settings = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    return {**os.environ, **PRODUCTION, **settings}


def migrate(url: str) -> None:
    command = [sys.executable, "manage.py", "migrate", "--run-syncdb", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=environment_on(url), check=True)


@contextmanager
def stopped(server: EmbeddedPostgres) -> Iterator[None]:
    """Stop all processes of the server by SIGSTOP: it accepts connections and answers nothing."""
    postmaster = psutil.Process(server.pid)
    postmaster.suspend()  # it starts no more of them
    processes = [postmaster, *postmaster.children(recursive=True)]
    for each in processes[1:]:
        each.suspend()
    try:
        yield
    finally:
        for each in processes:
            with suppress(psutil.NoSuchProcess):
                each.resume()


def crash(server: EmbeddedPostgres) -> None:
    """Stop the server as ``pg_ctl -m immediate`` does, and return once it has ended."""
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGQUIT)
    wait_until(lambda: not psutil.pid_exists(pid))
