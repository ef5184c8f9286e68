"""Claims of a queue with limits per group, as bare SQL claims that knows none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg

from benchmarks.bare import BareQueue
from benchmarks.database import BARE, KIND, OURS, PAYLOAD, empty, fill
from benchmarks.measuring import Comparison, Workload
from delayed_queue import DelayedQueue, Groups

GROUPS: Final = 1_000
BACKLOG: Final = 20_000
SINGLES: Final = 2_000
_FILL: Final = """
INSERT INTO delayed_queue (
    "pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt", "group"
)
SELECT 'key-' || n, %(kind)s, %(payload)s, n, n, n, 'group-' || n %% %(groups)s
FROM generate_series(1, %(count)s) AS n
"""


def comparisons(connection: psycopg.Connection[Any]) -> list[Comparison]:
    """Return the comparisons of polls and acknowledgements of so many messages."""
    return [_grouped(connection, messages) for messages in (1, 10, 100)]


def _grouped(connection: psycopg.Connection[Any], messages: int) -> Comparison:
    queue, bare = DelayedQueue("grouped", codec="bytes"), BareQueue(connection, KIND)
    operations = min(BACKLOG // messages, SINGLES)

    def prepare() -> Sequence[None]:
        empty(connection, OURS)
        queue.groups.set(Groups(concurrency=2))
        params = {
            "kind": queue.kind, "payload": PAYLOAD, "groups": GROUPS,
            "count": operations * messages * 2,
        }  # fmt: skip
        connection.execute(_FILL, params)
        connection.execute("ANALYZE delayed_queue")
        return [None] * operations

    def prepare_bare() -> Sequence[None]:
        fill(connection, BARE, (operations + 1) * messages)
        return [None] * operations

    def poll(_: None) -> None:
        if (taken := queue.try_poll_many(messages).acknowledge()) != messages:
            raise RuntimeError(f"{taken} messages were taken, not {messages}.")

    def poll_bare(_: None) -> None:
        lease_id, rows = bare.claim(messages)
        bare.acknowledge_lease(lease_id)
        if len(rows) != messages:
            raise RuntimeError(f"{len(rows)} messages were taken, not {messages}.")

    return Comparison(
        f"groups-{messages}",
        f"`try_poll_many({messages})` + `acknowledge`, of {GROUPS:,} groups, at most 2 of each",
        Workload(messages, prepare, poll),
        Workload(messages, prepare_bare, poll_bare),
    )
