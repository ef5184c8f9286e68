"""The statements that hold topics and jobs, to be run before others in one transaction."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from delayed_queue import sql
from delayed_queue.managers.steps import Step

# Each job holds an advisory lock until the commit, and a server has room for about 64 of them
# for each connection it allows.
MOST_JOBS: Final = 200
# The kinds of topics, as the statements and topics.kinds have them.
_KIND: Final = re.compile(r"([^#|]+)(?:#[0-9]+)?\|(?:json|callback)", re.ASCII)


def topic_of(kind: str) -> str | None:
    """Return the topic that a kind is one of, if there is a topic of that name."""
    match = _KIND.fullmatch(kind)
    return None if match is None else match[1]


def locking_jobs(topic: str, keys: Sequence[str]) -> Step:
    """Hold jobs, and the shards of their topic, until the end of the transaction."""
    return sql.LOCK_JOBS, {"topic": topic, "keys": list(keys)}


def locking_letters(ids: Sequence[int], kind: str | None) -> list[Step]:
    """Hold the jobs of dead letters, of one kind or of any, as ``locking_jobs`` does.

    More than two hundred hold their topics alone instead. A kind that is none of a topic's needs
    nothing.
    """
    if kind is not None and topic_of(kind) is None:
        return []
    params = {"ids": list(ids), "kind": kind, "most": MOST_JOBS}
    return [(sql.LOCK_TOPICS_OF_LETTERS, params), (sql.LOCK_JOBS_OF_LETTERS, params)]
