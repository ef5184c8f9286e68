"""Procrastinate, PgQueuer, Oban for Python, Chancy, and huey on PostgreSQL."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.peers.contenders.base import IN_GROUPS, Contender, Peer
from benchmarks.peers.environments import PythonEnvironment

PSYCOPG: Final = "psycopg[binary,pool]==3.3.9"
EVERYTHING: Final = ("offer", "pickup", "idle")

PROCRASTINATE: Final = Peer(
    name="procrastinate",
    kind="python",
    title="procrastinate",
    environment=PythonEnvironment(("procrastinate==3.10.0", PSYCOPG)),
    script="procrastinate_peer.py",
    tables=("procrastinate_jobs",),
    unfinished="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    failed="SELECT count(*) FROM procrastinate_jobs WHERE status = 'failed'",
    bulk=10_000,
)
PROCRASTINATE_GROUPED: Final = replace(
    PROCRASTINATE, name="procrastinate-grouped", variables=IN_GROUPS
)
PGQUEUER: Final = Peer(
    name="pgqueuer",
    kind="python",
    title="PgQueuer",
    environment=PythonEnvironment(
        ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")
    ),
    script="pgqueuer_peer.py",
    tables=("pgqueuer",),
    unfinished="SELECT EXISTS (SELECT FROM pgqueuer)",
    failed="SELECT count(*) FROM pgqueuer_log WHERE status IN ('exception', 'failed', 'canceled')",
    offers=1_500,
    bulk=40_000,
)
OBAN: Final = Peer(
    name="oban",
    kind="python",
    title="Oban for Python",
    environment=PythonEnvironment(("oban==0.7.0", PSYCOPG, "uvloop==0.23.0"), at_least=(3, 12)),
    script="oban_peer.py",
    tables=("oban_jobs",),
    unfinished="SELECT EXISTS (SELECT FROM oban_jobs WHERE state IN ('available', 'executing'))",
    failed="SELECT count(*) FROM oban_jobs WHERE state IN ('retryable', 'discarded', 'cancelled')",
    bulk=5_000,
)
CHANCY: Final = Peer(
    name="chancy",
    kind="python",
    title="Chancy",
    environment=PythonEnvironment(("chancy==0.26.0", PSYCOPG)),
    script="chancy_peer.py",
    tables=("chancy_jobs",),
    unfinished=(
        "SELECT EXISTS (SELECT FROM chancy_jobs WHERE state IN ('pending', 'running', 'retrying'))"
    ),
    failed="SELECT count(*) FROM chancy_jobs WHERE state = 'failed'",
    bulk=5_000,
)
HUEY: Final = Peer(
    name="huey",
    kind="python",
    title="huey (PostgreSQL)",
    environment=PythonEnvironment(("huey==3.5.4", "psycopg[binary]==3.3.9")),
    script="huey_peer.py",
    tables=("huey_task",),
    unfinished="SELECT EXISTS (SELECT FROM huey_task)",
    at_most_once=True,
    bulk=2_000,
)

CONTENDERS: Final = (
    Contender(
        name="procrastinate-best",
        peer=PROCRASTINATE,
        settings="concurrency 100, async handlers",
        jobs={1: 1_500, 4: 3_000},
        options={"concurrency": 100},
    ),
    Contender(
        name="procrastinate-defaults",
        peer=PROCRASTINATE,
        settings="defaults: concurrency 1",
        jobs={1: 800, 4: 2_000},
        batch=1,
        measures=EVERYTHING,
    ),
    Contender(
        name="procrastinate-groups-1",
        peer=PROCRASTINATE_GROUPED,
        settings="concurrency 100, async handlers, 1,000 locks",
        jobs={1: 1_500, 4: 3_000},
        options={"concurrency": 100},
        measures=("groups",),
        at_a_time=1,
    ),
    Contender(
        name="pgqueuer-best",
        peer=PGQUEUER,
        settings="batch size 1000",
        jobs={1: 40_000, 4: 80_000},
        options={"batch_size": 1000},
    ),
    Contender(
        name="pgqueuer-defaults",
        peer=PGQUEUER,
        settings="defaults: batch size 10",
        jobs={1: 8_000, 4: 15_000},
        measures=EVERYTHING,
    ),
    Contender(
        name="pgqueuer-1",
        peer=PGQUEUER,
        settings="batch size 1",
        jobs={1: 1_000, 4: 2_500},
        options={"batch_size": 1},
        batch=1,
    ),
    Contender(
        name="oban-best",
        peer=OBAN,
        settings="100 slots",
        jobs={1: 3_000, 4: 10_000},
        options={"limit": 100},
    ),
    Contender(
        name="oban-defaults",
        peer=OBAN,
        settings="defaults: 10 slots",
        jobs={1: 3_000, 4: 8_000},
        options={"limit": 10},
        measures=EVERYTHING,
    ),
    Contender(
        name="oban-1",
        peer=OBAN,
        settings="1 slot",
        jobs={1: 500, 4: 1_500},
        options={"limit": 1},
        batch=1,
    ),
    Contender(
        name="chancy-best",
        peer=CHANCY,
        settings="async executor, 100 slots, eager polling",
        jobs={1: 10_000, 4: 15_000},
        options={
            "executor": "chancy.executors.asyncex.AsyncExecutor",
            "concurrency": 100,
            "eager_polling": True,
        },
        measures=EVERYTHING,
    ),
    Contender(
        name="chancy-defaults",
        peer=CHANCY,
        settings="async executor, else defaults: 100 slots, polls every 5 s",
        jobs={1: 200, 4: 800},
        options={"executor": "chancy.executors.asyncex.AsyncExecutor"},
    ),
    Contender(
        name="chancy-1",
        peer=CHANCY,
        settings="async executor, 1 slot, eager polling",
        jobs={1: 500, 4: 1_500},
        options={
            "executor": "chancy.executors.asyncex.AsyncExecutor",
            "concurrency": 1,
            "eager_polling": True,
        },
        batch=1,
    ),
    Contender(
        name="huey-best",
        peer=HUEY,
        settings="processes, nothing periodic; at most once",
        jobs={1: 2_000, 4: 4_000},
        options={"arguments": ["-k", "process", "-n"]},
        batch=1,
        supervises=True,
    ),
    Contender(
        name="huey-defaults",
        peer=HUEY,
        settings="defaults: threads; at most once",
        jobs={1: 2_000, 4: 4_000},
        batch=1,
        supervises=True,
        one_claims=True,
        measures=EVERYTHING,
    ),
)
