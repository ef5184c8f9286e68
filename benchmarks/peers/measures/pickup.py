"""How long after its offer a job's handler is started, with an idle queue and one worker."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from benchmarks.peers.arena import Arena
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.processes import Stage, Workers

SAMPLES: Final = 300
RATE: Final = 20.0
WARM_UP: Final = 5
SECONDS: Final = 60


def pickup(arena: Arena, contender: Contender) -> dict[str, Any]:
    """Return median and 99th percentile of the milliseconds from offer to handler."""
    samples = arena.scaled(SAMPLES, 40)
    with (
        arena.backlog(contender, 0) as backlog,
        backlog.stage.working(contender, 1) as workers,
    ):
        warm_up(backlog.stage, contender, workers)
        backlog.stage.run(contender.peer, "pace", samples, RATE, options=contender.options)
        _wait_for(backlog.stage.stamps, WARM_UP + samples, workers)
        delays = _delays(backlog.stage.stamps)[WARM_UP:]
    cut = quantiles(delays, n=100, method="inclusive")
    return {"samples": len(delays), "p50_ms": cut[49], "p99_ms": cut[98], "max_ms": max(delays)}


def warm_up(stage: Stage, contender: Contender, workers: Workers) -> None:
    """Return when the worker has handled some jobs: it is up, its connections are made."""
    stage.run(contender.peer, "pace", WARM_UP, RATE, options=contender.options)
    _wait_for(stage.stamps, WARM_UP, workers)


def _wait_for(stamps: Path, count: int, workers: Workers) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        if stamps.exists() and stamps.read_bytes().count(b"\n") >= count:
            return
        workers.check()
        time.sleep(0.05)
    raise TimeoutError(f"A job was not started in {SECONDS} s: {workers.last_words()}")


def _delays(stamps: Path) -> list[float]:
    pairs = [line.split() for line in stamps.read_text().splitlines()]
    return [(float(started) - float(offered)) * 1000 for offered, started in pairs]
