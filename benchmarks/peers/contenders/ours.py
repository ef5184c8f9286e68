"""Our own worker, and the bare loop over the same layout that is the limit for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.peers.contenders.base import IN_GROUPS, Contender, Peer
from benchmarks.peers.environments import OwnEnvironment

OURS: Final = Peer(
    name="ours",
    kind="ours",
    title="delayed_queue",
    environment=OwnEnvironment(),
    script="ours.py",
    tables=("delayed_queue",),
    unfinished="SELECT EXISTS (SELECT FROM delayed_queue)",
    failed="SELECT count(*) FROM delayed_queue_dead_letter",
    offers=2_000,
    bulk=50_000,
)
TASKS: Final = Peer(
    name="tasks",
    kind="tasks",
    title="delayed_queue, as tasks",
    environment=OwnEnvironment(),
    script="tasks_peer.py",
    tables=("delayed_queue",),
    unfinished="SELECT EXISTS (SELECT FROM delayed_queue)",
    failed="SELECT count(*) FROM delayed_queue_dead_letter",
    bulk=20_000,
)
BARE: Final = Peer(
    name="bare",
    kind="bare",
    title="bare loop (limit)",
    environment=OwnEnvironment(),
    script="bare_peer.py",
    tables=("bare_queue",),
    unfinished="SELECT EXISTS (SELECT FROM bare_queue)",
    offers=2_000,
    bulk=50_000,
)
GROUPED: Final = replace(OURS, name="ours-grouped", kind="grouped", variables=IN_GROUPS)
BOTH: Final = ("--queue", "benchmark", "--queue", "benchmark-stamped")
OF_TASKS: Final = ("--queue", "tasks", "--queue", "tasks-stamped")


CONTENDERS: Final = (
    Contender(
        name="ours-defaults",
        peer=OURS,
        supervises=True,
        settings="the worker's defaults",
        jobs={1: 50_000, 4: 100_000},
        options={"arguments": BOTH},
        measures=("offer", "pickup", "idle"),
    ),
    Contender(
        name="ours-best",
        peer=OURS,
        supervises=True,
        settings="batch size 500, concurrency 1, two claims",
        jobs={1: 80_000, 4: 150_000},
        options={"arguments": (*BOTH, "--concurrency", "1", "--claims", "2")},
    ),
    Contender(
        name="ours-1",
        peer=OURS,
        supervises=True,
        settings="batch size 1, concurrency 1",
        jobs={1: 2_000, 4: 6_000},
        options={"arguments": (*BOTH, "--batch-size", "1", "--concurrency", "1")},
        batch=1,
    ),
    Contender(
        name="ours-transactional",
        peer=OURS,
        supervises=True,
        settings="transactional handler, batch size 1000, concurrency 2",
        jobs={1: 150_000, 4: 300_000},
        options={
            "arguments": (*BOTH, "--batch-size", "1000", "--concurrency", "2"),
            "transactional": True,
        },
    ),
    *(
        Contender(
            name=f"ours-groups-{number}",
            peer=GROUPED,
            supervises=True,
            settings=f"batch size 500, concurrency 1; 1,000 groups, Groups(concurrency={number})",
            jobs={1: 30_000, 4: 60_000},
            options={
                "arguments": (*BOTH, "--concurrency", "1", "--claims", "2"),
                "limits": {"concurrency": number},
            },
            at_a_time=number,
        )
        for number in (1, 2)
    ),
    Contender(
        name="ours-groups-defaults",
        peer=GROUPED,
        supervises=True,
        settings="the worker's defaults; 1,000 groups, Groups(concurrency=1)",
        jobs={1: 30_000, 4: 60_000},
        options={"arguments": BOTH, "limits": {"concurrency": 1}},
        measures=("groups",),
        at_a_time=1,
    ),
    Contender(
        name="tasks-kept",
        peer=TASKS,
        supervises=True,
        settings="the worker's defaults, results kept",
        jobs={1: 30_000, 4: 60_000},
        options={"arguments": OF_TASKS, "results": "7d"},
        measures=("offer", "pickup"),
    ),
    Contender(
        name="tasks-unkept",
        peer=TASKS,
        supervises=True,
        settings="the worker's defaults, results not kept",
        jobs={1: 50_000, 4: 100_000},
        options={"arguments": OF_TASKS, "results": None},
        measures=("pickup",),
    ),
    Contender(
        name="bare-500",
        peer=BARE,
        settings="claims of 500",
        jobs={1: 100_000, 4: 200_000},
        options={"batch": 500},
        measures=("offer",),
    ),
    Contender(
        name="bare-100",
        peer=BARE,
        settings="claims of 100",
        jobs={1: 80_000, 4: 150_000},
        options={"batch": 100},
    ),
    Contender(
        name="bare-1",
        peer=BARE,
        settings="claims of 1",
        jobs={1: 2_000, 4: 6_000},
        options={"batch": 1},
        batch=1,
    ),
)
