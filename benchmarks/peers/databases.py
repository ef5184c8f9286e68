"""Databases on one server: one made by each peer, copied for each run, and a gate before them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

READY_SECONDS: Final = 60
QUIET_SECONDS: Final = 0.5
WAITING: Final = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@dataclass(slots=True)
class Server:
    """The server under test, by the URL of a database on it that others are created from."""

    url: str
    _connection: psycopg.Connection[Any] = field(init=False)
    _made: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._connection = psycopg.connect(self.url, autocommit=True)

    @property
    def connection(self) -> psycopg.Connection[Any]:
        return self._connection

    @contextmanager
    def all_dropped(self) -> Iterator[Server]:
        """Drop at the end whatever was created here."""
        try:
            yield self
        finally:
            for name in [*self._made]:
                self.drop(name)
            self._connection.close()

    def create(self, name: str, template: str | None = None) -> Database:
        """Create a database, a copy of the template if one is named."""
        full = f"dq_peers_{os.getpid()}_{name}".replace("-", "_")
        self.drop(full)
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(full), sql.Identifier(template or "template0")
        )
        self._connection.execute(statement)
        self._made.append(full)
        return Database(self, full)

    def drop(self, full: str) -> None:
        identifier = sql.Identifier(full)
        self._connection.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier)
        )
        if full in self._made:
            self._made.remove(full)

    def checkpoint(self) -> None:
        """Let every run begin at the same distance from the next checkpoint, if we may."""
        try:
            self._connection.execute("CHECKPOINT")
        except psycopg.errors.InsufficientPrivilege:
            return

    def wal_position(self) -> int:
        row = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        return int(row[0]) if row else 0

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of the whole server, of ended backends too; None if elsewhere."""
        try:
            backend = psutil.Process(self._connection.info.backend_pid)
            postmaster = backend.parent()
        except psutil.NoSuchProcess:
            return None
        if postmaster is None or not backend.name().startswith("postgres"):
            return None
        times = postmaster.cpu_times()
        ended = float(times.children_user + times.children_system)
        return ended + sum(_cpu(child) for child in postmaster.children())


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@dataclass(frozen=True, slots=True)
class Database:
    """One database of one run."""

    server: Server
    name: str

    @property
    def conninfo(self) -> str:
        return make_conninfo(self.server.url, dbname=self.name)

    def variables(self) -> dict[str, str]:
        """Return libpq's variables, which every driver of every peer reads."""
        parts = conninfo_to_dict(self.conninfo)
        names = {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}
        names["password"] = "PGPASSWORD"  # noqa: S105 # the name of a variable
        return {name: str(parts[key]) for key, name in names.items() if parts.get(key)}

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            yield connection

    def drop(self) -> None:
        self.server.drop(self.name)


@dataclass(frozen=True, slots=True)
class Gate:
    """An exclusive lock on the tables that workers claim from.

    Workers start up against it, so that neither the start of an interpreter nor the order in
    which processes come up is part of what is measured: all are let in at one moment.
    """

    database: Database
    tables: tuple[str, ...]

    @contextmanager
    def closed(self) -> Iterator[Gate]:
        with self.database.connected() as connection, connection.transaction():
            for table in self.tables:
                connection.execute(
                    sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(
                        sql.Identifier(*table.split("."))
                    )
                )
            yield self

    def wait_for(self, workers: int) -> None:
        """Return when so many backends wait at the gate, and no more came for half a second."""
        until, quiet_at, last = time.monotonic() + READY_SECONDS, 0.0, -1
        with self.database.connected() as connection:
            while time.monotonic() < until:
                waiting = _value(connection, WAITING)
                if waiting != last:
                    last, quiet_at = waiting, time.monotonic() + QUIET_SECONDS
                if waiting >= workers and time.monotonic() >= quiet_at:
                    return
                time.sleep(0.05)
        raise TimeoutError(f"{last} of {workers} workers came up in {READY_SECONDS} s.")


def _value(connection: psycopg.Connection[Any], query: str) -> Any:
    row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None
