"""The statements that pause queues."""

from __future__ import annotations

from typing import TypeVar

from django.db import DEFAULT_DB_ALIAS, models

from delayed_queue import sql
from delayed_queue.statements import execute, fetch

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
        return execute(using, sql.PAUSE, params) > 0

    def resume(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Resume the queue; return whether it was paused."""
        return execute(using, sql.RESUME, {"kind": kind}) > 0

    def is_paused(self, kind: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
        """Return whether the queue hands out nothing."""
        found: bool = fetch(using, sql.IS_PAUSED, {"kind": kind})[0][0]
        return found
