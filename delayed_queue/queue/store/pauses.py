"""Pause and resume queues."""

from __future__ import annotations

from typing import Final, LiteralString, TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue.db.sql import CLOCK, value_of
from delayed_queue.db.statements import execute, fetch

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

M = TypeVar("M", bound=models.Model)


class PausedQueueManager(models.Manager[M]):
    """The statements that pause queues, in the manner of MessageManager."""

    def pause(
        self,
        kind: str,
        *,
        reason: str = "",
        by: str = "",
        now: int | None = None,
        using: str = DEFAULT_DB_ALIAS,
    ) -> bool:
        """Pause the queue; return False, and change nothing, when it is paused already."""
        params = {"kind": kind, "reason": reason, "by": by, "now": now}
        return execute(using, PAUSE, params) > 0

    def resume(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Resume the queue; return whether it was paused."""
        return execute(using, RESUME, {"kind": kind}) > 0

    def is_paused(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Return whether the queue hands out nothing."""
        found: bool = value_of(fetch(using, IS_PAUSED, {"kind": kind}))
        return found
