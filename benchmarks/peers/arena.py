"""Where contenders are measured: fresh databases, filled ones, and what both servers did."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import psycopg

from benchmarks.peers import redis
from benchmarks.peers.contenders.base import Contender, Peer
from benchmarks.peers.databases import Database, Gate, Server
from benchmarks.peers.processes import Stage

DURABLE: Final = ("fsync", "synchronous_commit")


class Backlog(Protocol):
    """The jobs of one contender in one run, as seen from outside."""

    @property
    def stage(self) -> Stage: ...

    def unfinished(self) -> bool: ...

    def failed(self) -> int: ...


@dataclass(frozen=True, slots=True)
class PostgresBacklog:
    """Jobs in a database of their own."""

    peer: Peer
    database: Database
    stage: Stage
    connection: psycopg.Connection[Any]

    def unfinished(self) -> bool:
        return bool(self._value(self.peer.unfinished))

    def failed(self) -> int:
        return int(self._value(self.peer.failed))

    def gate(self) -> Gate:
        return Gate(self.database, self.peer.tables)

    def _value(self, query: str) -> Any:
        row = self.connection.execute(query.encode()).fetchone()
        return row[0] if row else None


@dataclass(frozen=True, slots=True)
class RedisBacklog:
    """Jobs in the Redis of Celery."""

    stage: Stage

    def unfinished(self) -> bool:
        return redis.unfinished()

    def failed(self) -> int:
        return 0


@dataclass(slots=True)
class Arena:
    """One server, and on it a database of each peer that every run gets a copy of."""

    server: Server
    scale: float = 1.0
    _templates: dict[tuple[str, int], Database] = field(default_factory=dict)

    def prepare(self, contender: Contender) -> None:
        """Make what is kept between runs: the environment and the tables."""
        contender.peer.environment.make()
        if contender.peer.tables:
            self._template(contender.peer, 0)

    def jobs(self, contender: Contender, processes: int) -> int:
        """Return how long the backlog is, on the scale of this run."""
        return self.scaled(contender.backlog(processes), at_least=processes)

    def scaled(self, count: int, at_least: int = 1) -> int:
        return max(at_least, round(count * self.scale))

    @contextmanager
    def backlog(self, contender: Contender, count: int) -> Iterator[Any]:
        """Yield a backlog of so many jobs that nobody works on yet."""
        peer = contender.peer
        with _directory() as directory:
            if not peer.tables:
                yield self._redis_backlog(peer, directory, count)
                redis.empty()
                return
            database = self.server.create(f"run_{contender.name}", self._template(peer, count).name)
            try:
                with database.connected() as connection:
                    stage = Stage(database.variables(), directory)
                    yield PostgresBacklog(peer, database, stage, connection)
            finally:
                database.drop()

    def cpu_seconds(self, peer: Peer) -> float | None:
        return self.server.cpu_seconds() if peer.tables else redis.cpu_seconds()

    def _redis_backlog(self, peer: Peer, directory: Path, count: int) -> RedisBacklog:
        redis.empty()
        stage = Stage({}, directory)
        if count:
            stage.run(peer, "bulk", count)
        return RedisBacklog(stage)

    def _template(self, peer: Peer, count: int) -> Database:
        """Return a database with so many jobs, offered by the peer's own script, analyzed."""
        key = (peer.name, count)
        if key not in self._templates:
            base = self._template(peer, 0).name if count else None
            database = self.server.create(f"{peer.name}_{count}", base)
            with _directory() as directory:
                stage = Stage(database.variables(), directory)
                stage.run(peer, *(("bulk", count) if count else ("schema",)))
            with database.connected() as connection:
                connection.execute("ANALYZE")
            self._templates[key] = database
        return self._templates[key]


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bench-peers-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
