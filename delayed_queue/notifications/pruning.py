"""Forgetting what ended long ago: recipients and texts are not kept longer than they serve."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString

from delayed_queue.notifications.ids import first_id_at
from delayed_queue.notifications.services import execute, fetch

BATCH: Final = 1000

# Delete a bounded number of notifications that ended before a moment and were made before it, with
# their deliveries; in the order of their ids, so that a prune of a year goes on where it was.
# Open ones are passed over, however old. Reads: the primary key, the index of deliveries by
# notification.
PRUNE: Final[LiteralString] = """
WITH old AS MATERIALIZED (
    SELECT id
    FROM delayed_queue_notification
    WHERE id < %(before)s::uuid
        AND id > %(after)s::uuid
    ORDER BY id
    LIMIT %(limit)s
),
gone AS (
    DELETE FROM delayed_queue_notification AS n
    USING old
    WHERE n.id = old.id
        AND n.ended_at < %(ended_before)s
    RETURNING n.id
),
forgotten AS (
    DELETE FROM delayed_queue_notification_delivery AS d
    USING gone
    WHERE d.notification_id = gone.id
)
SELECT (SELECT count(*) FROM gone), (SELECT max(id::text) FROM old)
"""

# Delete a bounded number of dedupe keys whose window is over. Reads: notification_dedupe_until.
PRUNE_KEYS: Final[LiteralString] = """
DELETE FROM delayed_queue_notification_dedupe
WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_notification_dedupe
        WHERE until <= statement_timestamp()
        ORDER BY until
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""

# Delete a bounded number of parked requests that were parked before a moment.
# Reads: notification_parked_at.
PRUNE_PARKED: Final[LiteralString] = """
DELETE FROM delayed_queue_notification_parked
WHERE id = ANY (ARRAY(
        SELECT id
        FROM delayed_queue_notification_parked
        WHERE parked_at < %(before)s
        ORDER BY parked_at, id
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ))
"""


def prune(age: timedelta) -> int:
    """Delete what ended longer ago than that, a thousand at a time; return how many.

    With the notifications go their deliveries; dedupe keys go when their window is over, parked
    requests by the same age.
    """
    before = datetime.now(UTC) - age
    while execute(PRUNE_KEYS, {"limit": BATCH}) == BATCH:
        pass
    while execute(PRUNE_PARKED, {"before": before, "limit": BATCH}) == BATCH:
        pass
    return _prune_notifications(before)


def _prune_notifications(before: datetime) -> int:
    total: int = 0
    after = uuid.UUID(int=0)
    while True:
        params = {"before": first_id_at(before), "ended_before": before}
        gone, last = fetch(PRUNE, params | {"after": after, "limit": BATCH})[0]
        total += gone
        if last is None:
            return total
        after = uuid.UUID(last)
