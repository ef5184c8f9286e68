"""Statements of topics, and the advisory locks that make a job id unique in a topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, Step
from delayed_queue.db.statements import fetch, run
from delayed_queue.http.store.kinds import TOPIC, topic_of

# Numbers of the advisory locks of a topic and of a job: 64-bit hashes; names that share one only
# wait for each other. Statements compute them, because a redrive knows only ids. Locks of topics
# are taken before those of jobs, and both in the order of the numbers.
_TOPIC_LOCK: Final[LiteralString] = """hashtextextended(topic COLLATE "C", 2606711830591143)"""
_JOB_LOCK: Final[LiteralString] = (
    """hashtextextended((topic || '|' || "pKey") COLLATE "C", 5103994520718329)"""
)

_NAMED: Final[LiteralString] = "(SELECT %(topic)s::text AS topic) AS named"

# Lock the jobs, and the number of shards, until the end of the transaction. A statement of its own,
# so that the next one sees what earlier holders committed. The topic's lock is an InitPlan, taken
# before the first job's; OFFSET prevents flattening, which keeps the order of the jobs' locks.
LOCK_JOBS: Final[LiteralString] = f"""
SELECT count(pg_advisory_xact_lock(lock))
FROM (
    SELECT DISTINCT {_JOB_LOCK} AS lock
    FROM unnest(%(keys)b::text[]) AS job ("pKey")
    CROSS JOIN {_NAMED}
    ORDER BY lock
    OFFSET 0
) AS jobs
WHERE (
    SELECT pg_advisory_xact_lock_shared({_TOPIC_LOCK}) IS NOT NULL
    FROM {_NAMED}
)
"""

# Lock the number of shards for a change. Waits for transactions that are adding jobs.
LOCK_TOPIC: Final[LiteralString] = f"""
SELECT pg_advisory_xact_lock({_TOPIC_LOCK}) IS NULL
FROM {_NAMED}
"""

# The topics of letters: that of the given kind, or else of each letter.
_TOPICS_OF_LETTERS: Final[LiteralString] = f"""
WITH families AS MATERIALIZED (
    SELECT DISTINCT {TOPIC} AS topic
    FROM (
        SELECT %(kind)s::text AS "pKind"
        WHERE %(kind)s::text IS NOT NULL
        UNION ALL
        SELECT "pKind"
        FROM delayed_queue_dead_letter
        WHERE id = ANY (%(ids)b::bigint[])
            AND %(kind)s::text IS NULL
    ) AS letter
)"""

# Take the locks of LOCK_JOBS for dead letters before a redrive: first the topics, then, in a second
# statement that sees topics that were just created, the jobs. More than %(most)s letters lock their
# topics exclusively and no jobs: PostgreSQL has about 64 locks per connection.
# Reads: the primary key of the dead letters, unless all are of one kind.
LOCK_TOPICS_OF_LETTERS: Final[LiteralString] = f"""{_TOPICS_OF_LETTERS}
SELECT count(
    CASE
        WHEN cardinality(%(ids)b::bigint[]) > %(most)s::integer
        THEN pg_advisory_xact_lock(lock) IS NULL
        ELSE pg_advisory_xact_lock_shared(lock) IS NULL
    END
)
FROM (
    SELECT DISTINCT {_TOPIC_LOCK} AS lock
    FROM families
    WHERE topic IS NOT NULL
    ORDER BY lock
    OFFSET 0
) AS topics
"""

# Reads: topic_name; the primary key of the dead letters, where one of their topics exists.
LOCK_JOBS_OF_LETTERS: Final[LiteralString] = f"""{_TOPICS_OF_LETTERS},
topics AS MATERIALIZED (
    SELECT topic
    FROM families
    WHERE COALESCE(
            (SELECT true FROM delayed_queue_topic WHERE name = families.topic), false
        )
        AND cardinality(%(ids)b::bigint[]) <= %(most)s::integer
)
SELECT count(pg_advisory_xact_lock(lock))
FROM (
    SELECT DISTINCT {_JOB_LOCK} AS lock
    FROM (
        SELECT {TOPIC} AS topic, "pKey"
        FROM delayed_queue_dead_letter
        WHERE id = ANY (%(ids)b::bigint[])
            AND COALESCE("pKind" = %(kind)s::text, true)
            AND EXISTS (SELECT 1 FROM topics)
    ) AS letter
    WHERE topic = ANY (ARRAY(SELECT topic FROM topics))
    ORDER BY lock
    OFFSET 0
) AS jobs
"""

# Maximum number of jobs locked in a transaction: PostgreSQL has about 64 locks per connection.
MOST_JOBS: Final = 200


def locking_jobs(topic: str, keys: Sequence[str]) -> Step:
    """Lock jobs, and the shards of their topic, until the end of the transaction."""
    return LOCK_JOBS, {"topic": topic, "keys": list(keys)}


def locking_letters(ids: Sequence[int], kind: str | None) -> list[Step]:
    """Lock the jobs of dead letters, of one kind or of any; more than two hundred by topic.

    A kind that belongs to no topic needs no lock.
    """
    if kind is not None and topic_of(kind) is None:
        return []
    params = {"ids": list(ids), "kind": kind, "most": MOST_JOBS}
    return [(LOCK_TOPICS_OF_LETTERS, params), (LOCK_JOBS_OF_LETTERS, params)]


# Runs under LOCK_TOPIC: a redrive that found no topic has that lock.
# Reads: topic_name.
CREATE_TOPIC: Final[LiteralString] = f"""{CLOCK}
INSERT INTO delayed_queue_topic (name, "createdAt")
SELECT %(topic)s, now
FROM clock
ON CONFLICT (name) DO NOTHING
RETURNING id
"""

M = TypeVar("M", bound=models.Model)


class TopicRow(NamedTuple):
    """A topic as stored.

    ``hosts``: the hosts whose callbacks have a shard each, in that order, separated by spaces.
    """

    name: str
    shards: int = 1
    hosts: str = ""


class TopicStore(models.Manager[M]):
    """The statements of topics."""

    def create_once(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Create the topic; return False if it exists.

        Its exclusive lock, held until the end of the transaction, waits for redrives of the queue.
        """
        steps = [_locking_topic(topic), (CREATE_TOPIC, {"topic": topic, "now": None})]
        _, created = run(using, steps)
        return bool(created)

    def read(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow | None:
        return next(iter(self._rows(self.using(using).filter(name=topic))), None)

    def hold(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> TopicRow | None:
        """Return the topic, locked until the end of the transaction, after the lock of adding.

        Adding jobs does not wait for it.
        """
        run(using, [locking_jobs(topic, [])])
        locked = self.using(using).select_for_update(no_key=True).filter(name=topic)
        return next(iter(self._rows(locked)), None)

    def after(self, topic: str, limit: int, *, using: str = DEFAULT_DB_ALIAS) -> list[TopicRow]:
        """Return the next topics by name."""
        return self._rows(self.using(using).filter(name__gt=topic).order_by("name")[:limit])

    def lock(self, topic: str, *, using: str = DEFAULT_DB_ALIAS) -> None:
        """Lock the number of shards for a change, until the end of the transaction."""
        fetch(using, *_locking_topic(topic))

    def configure(self, topic: TopicRow, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Change a topic under hold(); its shards under lock() too. False if it is missing."""
        return self.using(using).filter(name=topic.name).update(**topic._asdict()) > 0

    def _rows(self, topics: models.QuerySet[M]) -> list[TopicRow]:
        return [TopicRow._make(each) for each in topics.values_list(*TopicRow._fields)]


def _locking_topic(topic: str) -> Step:
    return LOCK_TOPIC, {"topic": topic}
