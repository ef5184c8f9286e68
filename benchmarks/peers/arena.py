"""Where contenders run: a fresh copy of a filled database, and workers behind a gate.

Every run of a contender gets a copy of a database that the peer's own script created, filled and
that was then analyzed. Workers start while the tables that they claim from are locked. When all of
them wait for the lock it is released, and the clock starts: neither the start of an interpreter
nor the order in which processes come up is measured.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from benchmarks.peers.contenders import REDIS, Contender
from benchmarks.shared.database import Connection, value_of
from benchmarks.shared.processes import cpu_seconds

SECONDS: Final = 300
READY_SECONDS: Final = 60
QUIET_SECONDS: Final = 0.5
# Queries whether jobs are left may take this share of the time: they scan what workers leave.
QUERY_SHARE: Final = 0.05
WAITING: Final = """
SELECT count(*)
FROM pg_stat_activity
WHERE datname = current_database()
    AND wait_event_type = 'Lock'
"""
# They would change what the peers' drivers do.
FOREIGN: Final = ("PYTHONPATH", "DJANGO_SETTINGS_MODULE", "DATABASE_URL", "PGOPTIONS")
VARIABLES: Final = {
    "host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "password": "PGPASSWORD",
    "dbname": "PGDATABASE",
}  # fmt: skip


class ScriptFailed(Exception):
    """A peer's script failed; the message is the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Running worker processes of one contender."""

    started: list[subprocess.Popen[bytes]]
    log: Path

    def cpu_seconds(self) -> float:
        return cpu_seconds(*(each.pid for each in self.started))

    def wait_until(self, is_done: Callable[[], object], seconds: float, what: str) -> None:
        """Return when it is done, asking at most a twentieth of the time."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            asked_at = time.perf_counter()
            if is_done():
                return
            if ended := [each.returncode for each in self.started if each.poll() is not None]:
                raise ScriptFailed(f"A worker ended with {ended}: {self._last_words()}")
            time.sleep(max(0.01, (time.perf_counter() - asked_at) / QUERY_SHARE))
        raise TimeoutError(f"{what} took more than {seconds} s: {self._last_words()}")

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


@dataclass(frozen=True, slots=True)
class Backlog:
    """The jobs of one contender in one run, in a database of their own."""

    contender: Contender
    directory: Path
    connection: Connection
    conninfo: str

    @property
    def stamps(self) -> Path:
        """The file in which handlers write down when they were called."""
        return self.directory / "stamps"

    def unfinished(self) -> bool:
        return bool(value_of(self.connection, self.contender.peer.unfinished))

    def failed(self) -> int:
        return int(value_of(self.connection, self.contender.peer.failed))

    @contextmanager
    def gate(self) -> Iterator[Callable[[Workers, int], None]]:
        """Lock the tables; yield a function that waits for the workers and lets them in."""
        with psycopg.connect(self.conninfo) as connection:
            for table in self.contender.peer.tables:
                name = sql.Identifier(*table.split("."))
                connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(name))

            def let_in(workers: Workers, processes: int) -> None:
                workers.wait_until(self._all_wait(processes), READY_SECONDS, "The start")
                connection.commit()

            yield let_in

    def _all_wait(self, processes: int) -> Callable[[], bool]:
        """Return whether the processes wait for the lock, and none came for half a second."""
        last, quiet_at = -1, 0.0

        def all_wait() -> bool:
            nonlocal last, quiet_at
            waiting = value_of(self.connection, WAITING)
            if waiting != last:
                last, quiet_at = waiting, time.monotonic() + QUIET_SECONDS
            return waiting >= processes and time.monotonic() >= quiet_at

        return all_wait

    def run(self, *arguments: object) -> dict[str, Any]:
        """Run the script to its end; return the JSON of the last line that it printed."""
        done = subprocess.run(  # noqa: S603 - our own scripts
            [*self._command(), *map(str, arguments)], env=self._environment(1),
            cwd=self.directory, capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        if done.returncode:
            raise ScriptFailed(f"{arguments}: {(done.stderr or done.stdout)[-2000:]}")
        printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return dict(json.loads(printed[-1])) if printed else {}

    @contextmanager
    def working(self, processes: int) -> Iterator[Workers]:
        """Run the contender's workers; kill them and their children at the end."""
        commands = 1 if self.contender.supervises else processes
        log = self.directory / "workers.log"
        with ExitStack() as stack, log.open("ab") as output:
            started: list[subprocess.Popen[bytes]] = []
            for _ in range(commands):
                worker = subprocess.Popen(  # noqa: S603 - our own scripts
                    [*self._command(), "work"], env=self._environment(processes // commands),
                    cwd=self.directory, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    start_new_session=True,
                )  # fmt: skip
                stack.callback(_kill, worker)
                started.append(worker)
            yield Workers(started, log)

    def _command(self) -> list[str]:
        peer = self.contender.peer
        return peer.environment.command(peer.script)

    def _environment(self, processes: int) -> dict[str, str]:
        peer, parts = self.contender.peer, conninfo_to_dict(self.conninfo)
        return {
            **{name: value for name, value in os.environ.items() if name not in FOREIGN},
            **{name: str(parts[key]) for key, name in VARIABLES.items() if parts.get(key)},
            **peer.environment.variables(), **peer.variables,
            "BENCH_OPTIONS": json.dumps(dict(self.contender.options)),
            "BENCH_PROCESSES": str(processes), "BENCH_STAMPS": str(self.stamps),
        }  # fmt: skip


class RedisBacklog(Backlog):
    """The jobs of Celery in Redis, where no table can be locked."""

    def unfinished(self) -> bool:
        return self._waiting() > 0

    def failed(self) -> int:
        return 0

    @contextmanager
    def gate(self) -> Iterator[Callable[[Workers, int], None]]:
        """Yield a function that waits for the first job to be gone."""
        before = self._waiting()
        yield lambda workers, _: workers.wait_until(
            lambda: self._waiting() < before, READY_SECONDS, "The start"
        )

    def _waiting(self) -> int:
        return redis("LLEN celery") + redis("HLEN unacked")


def redis(command: str) -> int:
    """Return the integer that Redis replies."""
    host, port, database = REDIS
    with socket.create_connection((host, port), timeout=5) as connection:
        connection.sendall(f"SELECT {database}\r\n{command}\r\n".encode())
        lines = connection.makefile("r", encoding="utf-8")
        lines.readline()
        return int(lines.readline().strip(":\r\n").replace("+OK", "0"))


@dataclass(slots=True)
class Arena:
    """A server, with a filled database of each contender to copy from."""

    url: str
    connection: Connection
    scale: float = 1.0
    _templates: dict[tuple[str, int, int], str] = field(default_factory=dict)

    def scaled(self, count: int, at_least: int = 20) -> int:
        return max(at_least, round(count * self.scale))

    def wal_position(self) -> int:
        return int(value_of(self.connection, "SELECT pg_current_wal_insert_lsn() - '0/0'"))

    @contextmanager
    def backlog(self, contender: Contender, count: int) -> Iterator[Backlog]:
        """Yield a backlog of this size that no worker touches yet."""
        if not contender.peer.tables:
            with self._opened(contender, self.url, RedisBacklog) as backlog:
                redis("FLUSHDB")
                if count:
                    backlog.run("bulk", count)
                yield backlog
                redis("FLUSHDB")
            return
        name = self._create(f"run_{contender.name}", self._template(contender, count))
        try:
            with self._opened(contender, make_conninfo(self.url, dbname=name)) as backlog:
                yield backlog
        finally:
            self._drop(name)

    def drop_all(self) -> None:
        for name in self._templates.values():
            self._drop(name)

    @contextmanager
    def _opened(
        self, contender: Contender, conninfo: str, kind: type[Backlog] = Backlog
    ) -> Iterator[Backlog]:
        with (
            tempfile.TemporaryDirectory(prefix="bench-peers-") as directory,
            psycopg.connect(conninfo, autocommit=True) as connection,
        ):
            yield kind(contender, Path(directory), connection, conninfo)

    def _template(self, contender: Contender, count: int) -> str:
        """Return a database with this many jobs, offered by the peer's script and analyzed."""
        key = (contender.peer.title, contender.options.get("groups", 0), count)
        if key not in self._templates:
            base = self._template(contender, 0) if count else "template0"
            name = self._create(f"{contender.name}_{count}", base)
            with self._opened(contender, make_conninfo(self.url, dbname=name)) as backlog:
                backlog.run(*(("bulk", count) if count else ("schema",)))
                backlog.connection.execute("ANALYZE")
            self._templates[key] = name
        return self._templates[key]

    def _create(self, name: str, template: str) -> str:
        name = f"dq_peers_{os.getpid()}_{name}".replace("-", "_")
        self._drop(name)
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        names = (sql.Identifier(name), sql.Identifier(template))
        self.connection.execute(statement.format(*names))
        return name

    def _drop(self, name: str) -> None:
        statement = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self.connection.execute(statement.format(sql.Identifier(name)))


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """Kill a worker and everything it started: it has a session of its own."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
