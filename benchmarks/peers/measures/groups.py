"""Limits per key: how many handlers of one group run at a time, seen by the handlers themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.arena import Arena
from benchmarks.peers.contenders.base import Contender
from benchmarks.peers.measures.drain import wait

PROCESSES: Final = 4
HANDLER_SECONDS: Final = 0.002


def groups(arena: Arena, contender: Contender) -> dict[str, Any]:
    """Return how many handlers began beside as many of their group as there may be, or more."""
    jobs = arena.jobs(contender, 1)
    options = {**contender.options, "handler_seconds": HANDLER_SECONDS}
    observed = replace(contender, options=options)
    with arena.backlog(contender, jobs) as backlog:
        with backlog.stage.working(observed, PROCESSES) as workers:
            wait(backlog, workers)
        return {"handled": jobs, **judge(backlog.stage.stamps, contender.at_a_time)}


def judge(stamps: Path, at_a_time: int) -> dict[str, int]:
    """Go through what handlers noted: their group, when they began and when they ended."""
    events = []
    for group, began_at, ended_at in (line.split() for line in stamps.read_text().splitlines()):
        events += [(float(began_at), 1, group), (float(ended_at), -1, group)]
    running: Counter[str] = Counter()
    violations = most = 0
    for _, change, group in sorted(events):
        running[group] += change
        most = max(most, running[group])
        violations += change > 0 and running[group] > at_a_time
    return {"violations": violations, "most": most}
