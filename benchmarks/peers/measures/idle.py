"""What an idle worker costs: several side by side, for each of them uses next to nothing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from benchmarks.peers.arena import Arena
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.measures.pickup import warm_up
from benchmarks.peers.processes import Workers

SETTLE_SECONDS: Final = 5.0
SECONDS: Final = 20.0


def idle(arena: Arena, contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    """Return for each contender the share of a core that its idle worker takes."""
    with ExitStack() as stack:
        workers = {each.name: _started(arena, each, stack) for each in contenders}
        time.sleep(SETTLE_SECONDS)
        before = {name: each.cpu_seconds() for name, each in workers.items()}
        started_at = time.perf_counter()
        time.sleep(max(3.0, SECONDS * min(1.0, arena.scale)))
        seconds = time.perf_counter() - started_at
        return {
            name: {"percent": (each.cpu_seconds() - before[name]) / seconds * 100}
            for name, each in workers.items()
        }


def _started(arena: Arena, contender: Contender, stack: ExitStack) -> Workers:
    backlog = stack.enter_context(arena.backlog(contender, 0))
    workers: Workers = stack.enter_context(backlog.stage.working(contender, 1))
    warm_up(backlog.stage, contender, workers)
    return workers
