"""Graphile Worker and pg-boss, on Node.js."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.peers.contenders.base import IN_GROUPS, Contender, Peer
from benchmarks.peers.environments import NodeEnvironment

PG: Final = "pg@8.23.1"
EVERYTHING: Final = ("offer", "pickup", "idle")

GRAPHILE: Final = Peer(
    name="graphile-worker",
    kind="node",
    title="Graphile Worker",
    environment=NodeEnvironment((PG, "graphile-worker@0.18.0")),
    script="graphile_worker_peer.mjs",
    tables=("graphile_worker._private_jobs",),
    unfinished="SELECT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE attempts < 25)",
    failed="SELECT count(*) FROM graphile_worker._private_jobs WHERE last_error IS NOT NULL",
    bulk=40_000,
)
# 12.38.0 needs a version of rrule-temporal that npm did not have when this was pinned.
PG_BOSS: Final = Peer(
    name="pg-boss",
    kind="node",
    title="pg-boss",
    environment=NodeEnvironment((PG, "pg-boss@12.35.0")),
    script="pg_boss_peer.mjs",
    tables=("pgboss.job_common",),
    unfinished="SELECT EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')",
    failed="SELECT count(*) FROM pgboss.job WHERE state > 'completed'",
    bulk=40_000,
)
PG_BOSS_GROUPED: Final = replace(PG_BOSS, name="pg-boss-grouped", variables=IN_GROUPS)

CONTENDERS: Final = (
    Contender(
        name="graphile-best",
        peer=GRAPHILE,
        settings="local queue 500, batched completion, 24 messages at a time",
        jobs={1: 100_000, 4: 150_000},
        # As in its own performance test.
        options={
            "concurrentJobs": 24,
            "poolSize": 25,
            "localQueue": {"size": 500, "refetchDelay": {"durationMs": 10}},
            "completeJobBatchDelay": 0,
            "failJobBatchDelay": 0,
        },
        measures=EVERYTHING,
    ),
    Contender(
        name="graphile-defaults",
        peer=GRAPHILE,
        settings="defaults: one message at a time",
        jobs={1: 2_000, 4: 5_000},
        batch=1,
        measures=("pickup",),
    ),
    Contender(
        name="pg-boss-best",
        peer=PG_BOSS,
        settings="fetch(1000) and complete() in a loop",
        jobs={1: 50_000, 4: 80_000},
        options={"fetch": 1000},
    ),
    Contender(
        name="pg-boss-work",
        peer=PG_BOSS,
        settings="work() with batches of 1000 in bursts, LISTEN",
        jobs={1: 40_000, 4: 60_000},
        options={
            "boss": {"useListenNotify": True},
            "work": {
                "batchSize": 1000,
                "burstWhenBatchFull": True,
                "pollingIntervalSeconds": 0.5,
            },
        },
        measures=EVERYTHING,
    ),
    *(
        Contender(
            name=f"pg-boss-groups-{number}",
            peer=PG_BOSS_GROUPED,
            settings=f"fetch(1000), complete(); 1,000 groups, groupConcurrency {number}",
            jobs={1: 20_000, 4: 40_000},
            options={"fetch": 1000, "limits": {"groupConcurrency": number}},
            measures=("groups",),
            at_a_time=number,
        )
        for number in (1, 2)
    ),
    Contender(
        name="pg-boss-1",
        peer=PG_BOSS,
        settings="fetch(1) and complete() in a loop",
        jobs={1: 1_000, 4: 3_000},
        options={"fetch": 1},
        batch=1,
    ),
    Contender(
        name="pg-boss-defaults",
        peer=PG_BOSS,
        settings="defaults: work() with one message every 2 s",
        jobs={1: 2, 4: 8},
        batch=1,
    ),
)
