"""The peers that are Django apps: django-tasks-db, django-ox, django-q2 on the ORM."""

from __future__ import annotations

from typing import Final

from benchmarks.peers.contenders.base import Contender, Peer
from benchmarks.peers.environments import PythonEnvironment

PSYCOPG: Final = "psycopg[binary,pool]==3.3.9"
EVERYTHING: Final = ("offer", "pickup", "idle")
PERSISTENT: Final = {"CONN_MAX_AGE": None}

TASKS_DB: Final = Peer(
    name="django-tasks-db",
    kind="django",
    title="django-tasks-db",
    environment=PythonEnvironment(("django-tasks-db[compat]==0.13.0", "django==5.2.19", PSYCOPG)),
    script="django_peer.py",
    variables={"BENCH_PEER": "django_tasks_db"},
    tables=("django_tasks_database_dbtaskresult",),
    unfinished=(
        "SELECT EXISTS (SELECT FROM django_tasks_database_dbtaskresult"
        " WHERE status IN ('READY', 'RUNNING'))"
    ),
    failed="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'FAILED'",
    bulk=3_000,
)
OX: Final = Peer(
    name="django-ox",
    kind="django",
    title="django-ox",
    environment=PythonEnvironment(("django-ox==1.9.1", "django==6.1.3", PSYCOPG), at_least=(3, 12)),
    script="django_peer.py",
    variables={"BENCH_PEER": "django_ox"},
    tables=("django_ox_oxtask",),
    unfinished=(
        "SELECT EXISTS (SELECT FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING'))"
    ),
    failed="SELECT count(*) FROM django_ox_oxtask WHERE status IN ('FAILED', 'LOST')",
    bulk=5_000,
)
Q2: Final = Peer(
    name="django-q2",
    kind="django",
    title="django-q2 (ORM)",
    environment=PythonEnvironment(("django-q2==1.11.1", "django==5.2.19", PSYCOPG)),
    script="django_peer.py",
    variables={"BENCH_PEER": "django_q"},
    tables=("django_q_ormq",),
    unfinished="SELECT EXISTS (SELECT FROM django_q_ormq)",
    failed="SELECT count(*) FROM django_q_task WHERE NOT success",
    bulk=3_000,
)

CONTENDERS: Final = (
    Contender(
        name="django-tasks-db-best",
        peer=TASKS_DB,
        settings="persistent connections, interval 0.05 s",
        jobs={1: 800, 4: 2_000},
        options={
            "command": ["db_worker", "--no-startup-delay", "--interval", "0.05"],
            "database": PERSISTENT,
        },
        batch=1,
        measures=EVERYTHING,
    ),
    Contender(
        name="django-tasks-db-defaults",
        peer=TASKS_DB,
        settings="defaults: a connection a message",
        jobs={1: 400, 4: 1_000},
        options={"command": ["db_worker"]},
        batch=1,
    ),
    Contender(
        name="django-ox-best",
        peer=OX,
        settings="persistent connections, concurrency 4, interval 0.05 s",
        jobs={1: 800, 4: 2_500},
        options={
            "command": ["ox_worker", "--concurrency", "4", "--interval", "0.05"],
            "database": PERSISTENT,
        },
        supervises=True,
        measures=EVERYTHING,
    ),
    Contender(
        name="django-ox-defaults",
        peer=OX,
        settings="defaults: concurrency 1",
        jobs={1: 400, 4: 1_000},
        options={"command": ["ox_worker"]},
        batch=1,
        supervises=True,
    ),
    Contender(
        name="django-q2-best",
        peer=Q2,
        settings="bulk 50, queue limit 500, results not saved, polls every 0.05 s",
        jobs={1: 2_000, 4: 2_500},
        options={
            "command": ["qcluster"],
            "cluster": {"bulk": 50, "queue_limit": 500, "save_limit": -1, "poll": 0.05},
            "database": PERSISTENT,
        },
        supervises=True,
        one_claims=True,
        measures=EVERYTHING,
    ),
    Contender(
        name="django-q2-defaults",
        peer=Q2,
        settings="defaults: bulk 1",
        jobs={1: 100, 4: 200},
        options={"command": ["qcluster"]},
        batch=1,
        supervises=True,
        one_claims=True,
    ),
)
