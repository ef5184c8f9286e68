"""What a contender is: a peer, how its jobs are seen, and one way of setting it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.peers.environments import Environment

# In how many groups the jobs of a peer are, by turns, where it has groups.
IN_GROUPS: Final = {"BENCH_GROUPS": "1000"}
ALWAYS: Final = "drain"  # every contender is measured for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One library in one version: its script does what the protocol of ``scripts`` asks for.

    ``unfinished`` is a query that is true as long as a job is neither done nor failed, ``failed``
    one that counts the jobs that failed, ``tables`` those that a worker claims from. A peer
    without tables is not on PostgreSQL. Aims are set against kinds: ours, bare, node, python,
    django, redis.
    """

    name: str
    kind: str
    title: str
    environment: Environment
    script: str
    tables: tuple[str, ...] = ()
    unfinished: str = ""
    failed: str = "SELECT 0"
    variables: Mapping[str, str] = field(default_factory=dict)
    offers: int = 1_000
    bulk: int = 20_000
    durable: bool = True
    at_most_once: bool = False
    missing: Callable[[], str | None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A peer under settings of its own, which its script reads as ``options``.

    ``jobs`` says how long a backlog one process and four processes drain. ``batch`` is 1 where a
    message is claimed and acknowledged alone. ``supervises`` means that one command starts the
    processes, ``one_claims`` that a single connection claims for all of them. ``measures`` are
    those, beside the drain, that the peer is to be judged by in these settings. ``at_a_time`` is
    how many messages of a group these are to hold to, where they have groups.
    """

    name: str
    peer: Peer
    settings: str
    jobs: Mapping[int, int]
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int | None = None
    supervises: bool = False
    one_claims: bool = False
    measures: tuple[str, ...] = ()
    at_a_time: int = 0
    missing: Callable[[], str | None] = lambda: None

    def why_not(self) -> str | None:
        """Return why this contender cannot run here, or None."""
        return self.peer.missing() or self.missing()

    def has(self, measure: str) -> bool:
        return measure == ALWAYS or measure in self.measures

    def backlog(self, processes: int) -> int:
        """Return how many jobs so many processes drain; that of four for any other number."""
        return self.jobs.get(processes, self.jobs[max(self.jobs)])
