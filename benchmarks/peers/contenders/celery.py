"""Celery on Redis, for comparison: a crash of Redis may lose jobs, one of PostgreSQL may not."""

from __future__ import annotations

from typing import Final

from benchmarks.peers import redis
from benchmarks.peers.contenders.base import Contender, Peer
from benchmarks.peers.environments import PythonEnvironment

QUIET: Final = ("--without-gossip", "--without-mingle", "--without-heartbeat")

CELERY: Final = Peer(
    name="celery",
    kind="redis",
    title="Celery + Redis (not durable)",
    environment=PythonEnvironment(("celery==5.7.0", "redis==8.1.0", "packaging==26.3")),
    script="celery_peer.py",
    variables={"BENCH_REDIS": redis.URL},
    bulk=3_000,
    durable=False,
    at_most_once=True,
    missing=redis.why_not,
)

CONTENDERS: Final = (
    Contender(
        name="celery-best",
        peer=CELERY,
        settings="solo pool, prefetch 100, no gossip; acknowledged before the handler runs",
        jobs={1: 2_000, 4: 6_000},
        options={
            "arguments": ["--pool=solo", *QUIET],
            "settings": {"worker_prefetch_multiplier": 100},
            "alone": True,
        },
        measures=("offer", "pickup", "idle"),
    ),
    Contender(
        name="celery-defaults",
        peer=CELERY,
        settings="defaults: prefork pool, prefetch 4",
        jobs={1: 1_500, 4: 2_000},
        supervises=True,
    ),
)
