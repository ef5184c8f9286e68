"""The measures of a contender: drain, offer, pick-up, idle cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from benchmarks.peers.arena import SECONDS, Arena, Backlog, Workers
from benchmarks.peers.contenders import Contender
from benchmarks.shared.processes import server_seconds
from benchmarks.shared.rounds import percentile

SINGLES: Final = 1_500
SAMPLES: Final = 300
RATE: Final = 20.0
WARM_UP: Final = 5
IDLE_SECONDS: Final = 20
SETTLE_SECONDS: Final = 3


def drain(arena: Arena, contender: Contender, processes: int) -> dict[str, Any]:
    """Return the rate at which a backlog of no-op jobs is drained, and the cost of a job."""
    # On Redis the clock starts when the first jobs are gone.
    least = 20 if contender.peer.tables else 1_000
    jobs = arena.scaled(contender.jobs * (1 if processes == 1 else 2), least)
    with arena.backlog(contender, jobs) as backlog:
        # Every run starts at the same distance from the next checkpoint.
        arena.connection.execute("CHECKPOINT")
        with backlog.gate() as let_in, backlog.working(processes) as workers:
            let_in(workers, processes)
            before, began_at = _spent(arena, workers), time.perf_counter()
            workers.wait_until(lambda: not backlog.unfinished(), SECONDS, "The drain")
            seconds = time.perf_counter() - began_at
            client, server, wal = (
                now - then for now, then in zip(_spent(arena, workers), before, strict=True)
            )
        if failed := backlog.failed():
            raise RuntimeError(f"{failed} of {jobs} jobs failed.")
    figures = {"rate": jobs / seconds, "client, µs": client / jobs * 1e6}
    if contender.peer.tables:
        figures |= {"server, µs": server / jobs * 1e6, "WAL, bytes": wal / jobs}
    return figures


def _spent(arena: Arena, workers: Workers) -> tuple[float, float, int]:
    """Return the CPU seconds of workers and server, and the WAL position."""
    server = server_seconds(arena.connection)
    return workers.cpu_seconds(), server or 0.0, arena.wal_position()


def offer(arena: Arena, contender: Contender, _: int) -> dict[str, Any]:
    """Return the rates of one producer, one job a call and in bulk."""
    with arena.backlog(contender, 0) as backlog:
        arena.connection.execute("CHECKPOINT")
        single = backlog.run("offer", arena.scaled(SINGLES, 100))
        bulk = backlog.run("bulk", arena.scaled(contender.peer.bulk, 1_000))
    rates = {"one by one": single, "in bulk": bulk}
    return {name: found["count"] / found["seconds"] for name, found in rates.items()}


def pickup(arena: Arena, contender: Contender, _: int) -> dict[str, Any]:
    """Return the milliseconds from an offer to its handler on an idle queue."""
    samples = arena.scaled(SAMPLES)
    with arena.backlog(contender, 0) as backlog, backlog.working(1) as workers:
        _pace(backlog, workers, WARM_UP)
        _pace(backlog, workers, samples, WARM_UP)
        lines = backlog.stamps.read_text().splitlines()[WARM_UP:]
    pairs = [map(float, line.split()) for line in lines]
    delays = [(called - offered) * 1000 for offered, called in pairs]
    return {"p50, ms": percentile(delays, 50), "p99, ms": percentile(delays, 99)}


def idle(arena: Arena, contender: Contender, _: int) -> dict[str, Any]:
    """Return the share of a core that an idle worker takes."""
    seconds = arena.scaled(IDLE_SECONDS, 3)
    with arena.backlog(contender, 0) as backlog, backlog.working(1) as workers:
        _pace(backlog, workers, WARM_UP)
        time.sleep(SETTLE_SECONDS)
        before = workers.cpu_seconds()
        time.sleep(seconds)
        return {"% of a core": (workers.cpu_seconds() - before) / seconds * 100}


def _pace(backlog: Backlog, workers: Workers, count: int, known: int = 0) -> None:
    """Offer jobs at irregular intervals; return when their handlers have been called."""
    backlog.run("pace", count, RATE)
    stamps = backlog.stamps

    def are_handled() -> bool:
        return stamps.exists() and stamps.read_bytes().count(b"\n") >= known + count

    workers.wait_until(are_handled, SECONDS, "A handler")


Measure = Callable[[Arena, Contender, int], dict[str, Any]]
MEASURES: Final[dict[str, Measure]] = {
    "drain": drain, "offer": offer, "pickup": pickup, "idle": idle,
}  # fmt: skip
