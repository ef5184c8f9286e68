"""How many jobs a second one producer offers, one by one and in bulk."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.arena import Arena
from benchmarks.peers.contenders.base import Contender


def offer(arena: Arena, contender: Contender) -> dict[str, Any]:
    """Return both rates, and the WAL that an offer made one by one writes."""
    peer = contender.peer
    singles, bulk = arena.scaled(peer.offers, 100), arena.scaled(peer.bulk, 1_000)
    with arena.backlog(contender, 0) as backlog:
        arena.server.checkpoint()
        before = arena.server.wal_position()
        one_by_one = backlog.stage.run(peer, "offer", singles, options=contender.options)
        wal = arena.server.wal_position() - before
        in_bulk = backlog.stage.run(peer, "bulk", bulk, options=contender.options)
    return {
        "single_rate": one_by_one["count"] / one_by_one["seconds"],
        "bulk_rate": in_bulk["count"] / in_bulk["seconds"],
        "single_wal_bytes": wal / singles if peer.tables else None,
    }
