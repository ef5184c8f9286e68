"""The kinds of topics in SQL."""

from __future__ import annotations

import re
from typing import Final, LiteralString

from delayed_queue.queue.hooks import KindFamily

# All kinds of a topic are one family: a key is one job in all of them. A receiver identifies
# a callback by its first schedule, so a redrive keeps that.
KIND_FAMILY: Final = KindFamily(
    pattern="^([^#|]+)(?:#[0-9]+)?[|](?:json|callback)$", keeps_schedule="[|]callback$"
)
# The topic of a kind; NULL for a kind that belongs to no topic.
TOPIC: Final[LiteralString] = (
    """substring("pKind" FROM '^([^#|]+)(?:#[0-9]+)?[|](?:json|callback)$')"""
)

# The kinds of a topic, named as in jobs.kinds; a topic without a row has one shard of each way.
# Statements put other conditions inside COALESCE, so that the planner does not choose an index for
# them: a key has few rows, a kind or a lease may have many.
PLACES: Final[LiteralString] = """
places AS MATERIALIZED (
    SELECT ARRAY(
        SELECT
            %(topic)s::text
            || CASE shard WHEN 0 THEN '' ELSE '#' || shard END
            || '|' || way
        FROM unnest(
            ARRAY['json', 'callback'],
            ARRAY[
                COALESCE(
                    (SELECT shards FROM delayed_queue_topic WHERE name = %(topic)s::text), 1
                ),
                COALESCE(
                    (
                        SELECT CASE
                            WHEN cardinality(string_to_array(hosts, ' ')) < 32
                            THEN GREATEST(cardinality(string_to_array(hosts, ' ')), 1)
                            ELSE 64
                        END
                        FROM delayed_queue_topic
                        WHERE name = %(topic)s::text
                    ),
                    1
                )
            ]
        ) AS ways (way, shards)
        CROSS JOIN generate_series(0, ways.shards - 1) AS shard
    ) AS kinds
)"""


def topic_of(kind: str) -> str | None:
    """Return the topic that a kind would belong to; None for other kinds."""
    match = re.search(KIND_FAMILY.pattern, kind)
    return None if match is None else match[1]
