"""The reports that the pipeline keeps for the admin."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.db.sql import CLOCK

# Keep a report and its plots, and drop all but the newest few before it, a hundred at most.
# Reads: the primary key.
SAVE_REPORT: Final[LiteralString] = (
    CLOCK
    + """,
outdated AS (
    DELETE FROM delayed_queue_report
    WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_report
        ORDER BY id DESC
        OFFSET %(keep)s::integer - 1
        LIMIT 100
    ))
)
INSERT INTO delayed_queue_report ("createdAt", figures, plots)
SELECT now, %(figures)s::jsonb, %(plots)s::jsonb
FROM clock
RETURNING id
"""
)
