"""The table of contenders: peers, and the settings under which each is measured.

To add a peer, write a script with the protocol of ``scripts/protocol.py``, and add a ``Peer``
and a line for each of its settings here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.peers.environments import Node, Own, Python

PG: Final = "pg@8.23.1"
PSYCOPG: Final = "psycopg[binary,pool]==3.3.9"
REDIS: Final = ("127.0.0.1", 6379, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One library in one version.

    ``tables``: those that workers claim from; none for a peer on Redis. ``unfinished``: whether a
    job is neither done nor failed. ``failed``: how many failed. ``bulk``: jobs of a bulk offer.
    """

    title: str
    environment: Own | Python | Node
    script: str
    tables: tuple[str, ...] = ()
    unfinished: str = ""
    failed: str = "SELECT 0"
    variables: Mapping[str, str] = field(default_factory=dict)
    bulk: int = 20_000


@dataclass(frozen=True, slots=True)
class Contender:
    """A peer under settings of its own, which its script reads as ``options``.

    ``jobs``: the backlog of one process; more processes drain twice as many. ``measures``: those
    beside the drain. ``supervises``: one command starts all processes.
    """

    name: str
    peer: Peer
    settings: str
    jobs: int
    options: Mapping[str, Any] = field(default_factory=dict)
    measures: tuple[str, ...] = ()
    supervises: bool = False

    @property
    def title(self) -> str:
        return f"{self.peer.title}: {self.settings}"


OURS: Final = Peer(
    title="delayed_queue", environment=Own(), script="ours_peer.py", tables=("delayed_queue",),
    unfinished="SELECT EXISTS (SELECT FROM delayed_queue)",
    failed="SELECT count(*) FROM delayed_queue_dead_letter", bulk=50_000,
)  # fmt: skip
BARE: Final = Peer(
    title="bare loop (limit)", environment=Own(), script="bare_peer.py", tables=("bare_queue",),
    unfinished="SELECT EXISTS (SELECT FROM bare_queue)", bulk=50_000,
)  # fmt: skip
GRAPHILE: Final = Peer(
    title="Graphile Worker", environment=Node(("graphile-worker@0.18.0", PG)),
    script="graphile_peer.mjs", tables=("graphile_worker._private_jobs",),
    unfinished="SELECT EXISTS (SELECT FROM graphile_worker._private_jobs WHERE attempts < 25)",
    failed="SELECT count(*) FROM graphile_worker._private_jobs WHERE last_error IS NOT NULL",
    bulk=40_000,
)  # fmt: skip
PG_BOSS: Final = Peer(
    title="pg-boss", environment=Node(("pg-boss@12.35.0", PG)),
    script="pg_boss_peer.mjs", tables=("pgboss.job_common",),
    unfinished="SELECT EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')",
    failed="SELECT count(*) FROM pgboss.job WHERE state > 'completed'", bulk=40_000,
)  # fmt: skip
BULLMQ: Final = Peer(
    title="BullMQ (PostgreSQL)", environment=Node(("bullmq@6.7.0", PG)),
    script="bullmq_peer.mjs", tables=("bullmq.job",),
    unfinished="SELECT EXISTS (SELECT FROM bullmq.job WHERE state IN ('waiting', 'active'))",
    failed="SELECT count(*) FROM bullmq.job WHERE state = 'failed'", bulk=10_000,
)  # fmt: skip
PGQUEUER: Final = Peer(
    title="PgQueuer",
    environment=Python(("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")),
    script="pgqueuer_peer.py", tables=("pgqueuer",),
    unfinished="SELECT EXISTS (SELECT FROM pgqueuer)",
    failed="SELECT count(*) FROM pgqueuer_log WHERE status IN ('exception', 'failed', 'canceled')",
    bulk=40_000,
)  # fmt: skip
PROCRASTINATE: Final = Peer(
    title="procrastinate", environment=Python(("procrastinate==3.10.0", PSYCOPG)),
    script="procrastinate_peer.py", tables=("procrastinate_jobs",),
    unfinished="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    failed="SELECT count(*) FROM procrastinate_jobs WHERE status = 'failed'", bulk=10_000,
)  # fmt: skip
TASKS_DB: Final = Peer(
    title="django-tasks-db",
    environment=Python(("django-tasks-db[compat]==0.13.0", "django==5.2.19", PSYCOPG)),
    script="django_peer.py", tables=("django_tasks_database_dbtaskresult",),
    unfinished="SELECT EXISTS (SELECT FROM django_tasks_database_dbtaskresult"
    " WHERE status IN ('READY', 'RUNNING'))",
    failed="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'FAILED'",
    variables={"BENCH_PEER": "django_tasks_db"}, bulk=3_000,
)  # fmt: skip
OX: Final = Peer(
    title="django-ox",
    environment=Python(("django-ox==1.9.1", "django==6.1.3", PSYCOPG), minor=12),
    script="django_peer.py", tables=("django_ox_oxtask",),
    unfinished="SELECT EXISTS (SELECT FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING'))",
    failed="SELECT count(*) FROM django_ox_oxtask WHERE status IN ('FAILED', 'LOST')",
    variables={"BENCH_PEER": "django_ox"}, bulk=5_000,
)  # fmt: skip
CELERY: Final = Peer(
    title="Celery + Redis (not durable)",
    environment=Python(("celery==5.7.0", "redis==8.1.0", "packaging==26.3")),
    script="celery_peer.py", bulk=3_000,
    variables={"BENCH_REDIS": "redis://{}:{}/{}".format(*REDIS)},
)  # fmt: skip

ALL_MEASURES: Final = ("offer", "pickup", "idle")
PERSISTENT: Final = {"CONN_MAX_AGE": None}
LOCAL_QUEUE: Final = {"size": 500, "refetchDelay": {"durationMs": 10}}
BURSTS: Final = {"batchSize": 1000, "burstWhenBatchFull": True, "pollingIntervalSeconds": 0.5}
QUIET: Final = ("--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat")


def _ours(
    name: str, settings: str, jobs: int, *arguments: str, measures: tuple[str, ...] = (),
    **options: Any,
) -> Contender:  # fmt: skip
    options["arguments"] = arguments
    return Contender(f"ours-{name}", OURS, settings, jobs, options, measures, supervises=True)


_TWO_CLAIMS: Final = ("--concurrency", "1", "--claims", "2")
CONTENDERS: Final = (
    _ours("defaults", "the worker's defaults", 50_000, measures=ALL_MEASURES),
    _ours("best", "batches of 500, one thread, two claims", 80_000, *_TWO_CLAIMS),
    _ours("1", "one at a time", 2_000, "--batch-size", "1", "--concurrency", "1"),
    _ours("transactional", "transactional handler, batches of 1000, two threads", 150_000,
          "--batch-size", "1000", "--concurrency", "2", handler={"transactional": True}),
    _ours("groups", "as best; 1,000 groups, Groups(concurrency=1)", 30_000, *_TWO_CLAIMS,
          groups=1000, limits={"concurrency": 1}),
    Contender("bare-500", BARE, "claims of 500", 100_000, {"batch": 500}, ("offer",)),
    Contender("bare-1", BARE, "claims of 1", 2_000, {"batch": 1}),
    # The settings of its own performance test.
    Contender("graphile-best", GRAPHILE, "local queue 500, batched completion, 24 at a time",
              100_000, {"concurrentJobs": 24, "poolSize": 25, "localQueue": LOCAL_QUEUE,
                        "completeJobBatchDelay": 0, "failJobBatchDelay": 0}, ALL_MEASURES),
    Contender("graphile-defaults", GRAPHILE, "defaults: one at a time", 2_000, {}, ("pickup",)),
    Contender("pg-boss-best", PG_BOSS, "fetch(1000) and complete() in a loop", 50_000,
              {"fetch": 1000}),
    Contender("pg-boss-work", PG_BOSS, "work(), batches of 1000 in bursts, LISTEN", 40_000,
              {"boss": {"useListenNotify": True}, "work": BURSTS}, ALL_MEASURES),
    Contender("pg-boss-groups", PG_BOSS, "as best; 1,000 groups, groupConcurrency 1", 20_000,
              {"fetch": 1000, "groups": 1000, "limits": {"groupConcurrency": 1}}),
    Contender("bullmq-best", BULLMQ, "concurrency 32", 1_500, {"concurrency": 32}),
    Contender("bullmq-defaults", BULLMQ, "defaults: concurrency 1", 800, {}, ALL_MEASURES),
    Contender("pgqueuer-best", PGQUEUER, "batches of 1000", 40_000, {"batch_size": 1000}),
    Contender("pgqueuer-defaults", PGQUEUER, "defaults: batches of 10", 8_000, {}, ALL_MEASURES),
    Contender("pgqueuer-1", PGQUEUER, "batches of 1", 1_000, {"batch_size": 1}),
    Contender("procrastinate-best", PROCRASTINATE, "concurrency 100, async handlers", 1_500,
              {"concurrency": 100}),
    Contender("procrastinate-defaults", PROCRASTINATE, "defaults: concurrency 1", 800, {},
              ALL_MEASURES),
    Contender("django-tasks-db-best", TASKS_DB, "persistent connections, interval 0.05 s", 800,
              {"command": ("db_worker", "--no-startup-delay", "--interval", "0.05"),
               "database": PERSISTENT}, ALL_MEASURES),
    Contender("django-ox-best", OX, "persistent connections, concurrency 4, interval 0.05 s", 800,
              {"command": ("ox_worker", "--concurrency", "4", "--interval", "0.05"),
               "database": PERSISTENT}, ALL_MEASURES, supervises=True),
    Contender("celery-best", CELERY, "solo pool, prefetch 100; acknowledged before the handler",
              2_000, {"arguments": QUIET, "settings": {"worker_prefetch_multiplier": 100}},
              ALL_MEASURES),
)  # fmt: skip
