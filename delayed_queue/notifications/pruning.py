"""Forgetting what ended long ago: recipients and texts are not kept longer than they serve."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

from delayed_queue.notifications import queries
from delayed_queue.notifications.ids import first_id_at
from delayed_queue.notifications.services import execute, fetch

BITE: Final = 1000


def prune(age: timedelta) -> int:
    """Delete what ended longer ago than that, a thousand at a time; return how many.

    With the notifications go their deliveries; dedupe keys go when their window is over, parked
    requests by the same age.
    """
    before = datetime.now(UTC) - age
    while execute(queries.PRUNE_KEYS, {"limit": BITE}) == BITE:
        pass
    while execute(queries.PRUNE_PARKED, {"before": before, "limit": BITE}) == BITE:
        pass
    return _prune_notifications(before)


def _prune_notifications(before: datetime) -> int:
    total: int = 0
    after = uuid.UUID(int=0)
    while True:
        params = {"before": first_id_at(before), "ended_before": before}
        gone, last = fetch(queries.PRUNE, params | {"after": after, "limit": BITE})[0]
        total += gone
        if last is None:
            return total
        after = uuid.UUID(last)
