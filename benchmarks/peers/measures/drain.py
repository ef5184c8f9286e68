"""How long a backlog of no-op jobs lasts, and what a job costs on both sides."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.peers import redis
from benchmarks.peers.arena import Arena, PostgresBacklog, RedisBacklog
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.processes import Workers

SECONDS: Final = 180
LOOK_SECONDS: Final = 0.02
# Looking may take this share of the time: it scans what the workers leave behind.
LOOK_SHARE: Final = 0.05


@dataclass(slots=True)
class Clock:
    """What has been spent since the workers were let in."""

    arena: Arena
    contender: Contender
    workers: Workers
    started_at: float = 0.0
    client: float = 0.0
    server: float | None = None
    wal: int = 0

    def start(self) -> None:
        self.client = self.workers.cpu_seconds()
        self.server = self.arena.cpu_seconds(self.contender.peer)
        self.wal = self.arena.server.wal_position()
        self.started_at = time.perf_counter()

    def stop(self, jobs: int) -> dict[str, Any]:
        seconds = time.perf_counter() - self.started_at
        client = self.workers.cpu_seconds() - self.client
        server = self.arena.cpu_seconds(self.contender.peer)
        spent = None if server is None or self.server is None else server - self.server
        wal = self.arena.server.wal_position() - self.wal
        return {
            "jobs": jobs,
            "seconds": seconds,
            "rate": jobs / seconds,
            "client_us": client / jobs * 1e6,
            "server_us": None if spent is None else spent / jobs * 1e6,
            "wal_bytes": wal / jobs if self.contender.peer.tables else None,
        }


def drain(arena: Arena, contender: Contender, processes: int) -> dict[str, Any]:
    """Return the figures of one drain by so many processes."""
    jobs = arena.jobs(contender, processes)
    with arena.backlog(contender, jobs) as backlog:
        arena.server.checkpoint()
        with _let_in(arena, backlog, contender, processes) as clock:
            wait(backlog, clock.workers)
            figures = clock.stop(jobs)
        if failed := backlog.failed():
            raise RuntimeError(f"{failed} of {jobs} jobs failed.")
    return figures


@contextmanager
def _let_in(arena: Arena, backlog: Any, contender: Contender, processes: int) -> Iterator[Clock]:
    if isinstance(backlog, RedisBacklog):
        jobs = redis.waiting()
        with backlog.stage.working(contender, processes) as workers:
            clock = Clock(arena, contender, workers)
            _first_progress(workers, jobs)
            clock.start()
            yield clock
        return
    with _through_the_gate(arena, backlog, contender, processes) as clock:
        yield clock


@contextmanager
def _through_the_gate(
    arena: Arena, backlog: PostgresBacklog, contender: Contender, processes: int
) -> Iterator[Clock]:
    gate = backlog.gate()
    # Two stacks: the gate opens while the workers stay.
    with ExitStack() as working, ExitStack() as closed:
        closed.enter_context(gate.closed())
        workers = working.enter_context(backlog.stage.working(contender, processes))
        gate.wait_for(1 if contender.one_claims else processes)
        workers.check()
        clock = Clock(arena, contender, workers)
        clock.start()
        closed.close()
        yield clock


def _first_progress(workers: Workers, jobs: int) -> None:
    """Return when the first jobs are gone: where there is no gate, start-up is left out so."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        workers.check()
        left = redis.waiting()
        if left == 0:
            raise RuntimeError(f"{jobs} jobs were gone before the clock was started.")
        if left < jobs:
            return
        time.sleep(0.002)
    raise TimeoutError(f"No job was done in {SECONDS} s: {workers.last_words()}")


def wait(backlog: Any, workers: Workers) -> None:
    """Return when no job is unfinished, at most a twentieth of the time spent on looking."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        looked_at = time.perf_counter()
        if not backlog.unfinished():
            return
        workers.check()
        took = time.perf_counter() - looked_at
        time.sleep(max(LOOK_SECONDS, took / LOOK_SHARE))
    raise TimeoutError(f"Jobs were left after {SECONDS} s: {workers.last_words()}")
