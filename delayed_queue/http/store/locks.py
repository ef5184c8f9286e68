"""The advisory locks of topics and jobs, under which a job's id is one over several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from delayed_queue.db.statements import Step
from delayed_queue.http.store.fragments import TOPIC, topic_of

# The advisory locks of a topic and of one of its jobs, as numbers: 64 bits of a hash, so that two
# names may share one, and then only wait for each other. Computed in the statements that take
# them, where a redrive, which is told ids, has the names. Everybody takes those of topics before
# those of jobs, and both in the order of the numbers.
_TOPIC_LOCK: Final[LiteralString] = """hashtextextended(topic COLLATE "C", 2606711830591143)"""
_JOB_LOCK: Final[LiteralString] = (
    """hashtextextended((topic || '|' || "pKey") COLLATE "C", 5103994520718329)"""
)

_NAMED: Final[LiteralString] = "(SELECT %(topic)s::text AS topic) AS named"

# Hold the jobs, and the number of shards, until the end of the transaction. In a statement of its
# own: what comes after it has a snapshot that sees what earlier holders committed. The topic's
# lock is an InitPlan, taken before the first job's; a sub-select with OFFSET is not flattened, so
# the jobs' come in its order.
LOCK_JOBS: Final[LiteralString] = (
    """
SELECT count(pg_advisory_xact_lock(lock))
FROM (
    SELECT DISTINCT """
    + _JOB_LOCK
    + """ AS lock
    FROM unnest(%(keys)b::text[]) AS job ("pKey")
    CROSS JOIN """
    + _NAMED
    + """
    ORDER BY lock
    OFFSET 0
) AS jobs
WHERE (
    SELECT pg_advisory_xact_lock_shared("""
    + _TOPIC_LOCK
    + """) IS NOT NULL
    FROM """
    + _NAMED
    + """
)
"""
)

# Lock the number of shards for a change. Waits for transactions that are adding jobs.
LOCK_TOPIC: Final[LiteralString] = (
    """
SELECT pg_advisory_xact_lock("""
    + _TOPIC_LOCK
    + """) IS NULL
FROM """
    + _NAMED
    + """
"""
)

# The topics of letters: that of their one kind, or, where any may be among them, of each.
_TOPICS_OF_LETTERS: Final[LiteralString] = (
    """
WITH families AS MATERIALIZED (
    SELECT DISTINCT """
    + TOPIC
    + """ AS topic
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
)

# Hold what LOCK_JOBS does for the jobs of dead letters, before they are redriven: first the topics,
# then, in a statement whose snapshot sees one that has just been created, the jobs of those there
# are. A queue of Django code that is no topic costs its one shared lock. More than %(most)s letters
# hold their topics alone, and no job: a server has room for about 64 locks for each connection.
# Reads: the primary key of the dead letters, unless all are of one kind.
LOCK_TOPICS_OF_LETTERS: Final[LiteralString] = (
    _TOPICS_OF_LETTERS
    + """
SELECT count(
    CASE
        WHEN cardinality(%(ids)b::bigint[]) > %(most)s::integer
        THEN pg_advisory_xact_lock(lock) IS NULL
        ELSE pg_advisory_xact_lock_shared(lock) IS NULL
    END
)
FROM (
    SELECT DISTINCT """
    + _TOPIC_LOCK
    + """ AS lock
    FROM families
    WHERE topic IS NOT NULL
    ORDER BY lock
    OFFSET 0
) AS topics
"""
)

# Reads: topic_name; the primary key of the dead letters, where one of their topics exists.
LOCK_JOBS_OF_LETTERS: Final[LiteralString] = (
    _TOPICS_OF_LETTERS
    + """,
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
    SELECT DISTINCT """
    + _JOB_LOCK
    + """ AS lock
    FROM (
        SELECT """
    + TOPIC
    + """ AS topic, "pKey"
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
)

# Each job holds an advisory lock until the commit, and a server has room for about 64 of them
# for each connection it allows.
MOST_JOBS: Final = 200


def locking_jobs(topic: str, keys: Sequence[str]) -> Step:
    """Hold jobs, and the shards of their topic, until the end of the transaction."""
    return LOCK_JOBS, {"topic": topic, "keys": list(keys)}


def locking_letters(ids: Sequence[int], kind: str | None) -> list[Step]:
    """Hold the jobs of dead letters, of one kind or of any, as ``locking_jobs`` does.

    More than two hundred hold their topics alone instead. A kind that is none of a topic's needs
    nothing.
    """
    if kind is not None and topic_of(kind) is None:
        return []
    params = {"ids": list(ids), "kind": kind, "most": MOST_JOBS}
    return [(LOCK_TOPICS_OF_LETTERS, params), (LOCK_JOBS_OF_LETTERS, params)]
