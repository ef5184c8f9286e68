"""The queues that hand out nothing, by an operator's wish; CLAIM and CONSUME obey."""

from __future__ import annotations

from typing import Final, LiteralString

from delayed_queue.sql.fragments import CLOCK

# The first pause stands, with its reason. Reads: paused_kind.
PAUSE: Final[LiteralString] = (
    CLOCK
    + """
INSERT INTO delayed_queue_paused ("pKind", "pausedAt", "pausedBy", reason)
SELECT %(kind)s, now, %(by)s, %(reason)s
FROM clock
ON CONFLICT ("pKind") DO NOTHING
"""
)

# Reads: paused_kind.
RESUME: Final[LiteralString] = """
DELETE FROM delayed_queue_paused
WHERE "pKind" = %(kind)s
"""

# Reads: paused_kind.
IS_PAUSED: Final[LiteralString] = """
SELECT EXISTS (
    SELECT 1
    FROM delayed_queue_paused
    WHERE "pKind" = %(kind)s
)
"""
