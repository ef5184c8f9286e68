"""What several statements about jobs have in common."""

from __future__ import annotations

from typing import Final, LiteralString

# The kinds of a topic, as topics.kinds names them; one that has no row yet has one shard.
# Elsewhere conditions stand inside COALESCE, where no index serves them, because a key has few
# rows, and a kind or a lease may have many.
PLACES: Final[LiteralString] = """
places AS MATERIALIZED (
    SELECT ARRAY(
        SELECT
            %(topic)s::text
            || CASE shard WHEN 0 THEN '' ELSE '#' || shard END
            || '|' || way
        FROM generate_series(
            0,
            COALESCE(
                (SELECT shards FROM delayed_queue_topic WHERE name = %(topic)s::text), 1
            ) - 1
        ) AS shard
        CROSS JOIN unnest(ARRAY['json', 'callback']) AS way
    ) AS kinds
)"""
