"""The state of the run in numbers, counted in the database each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, LiteralString

from django.db import connection

from example_project.shop import queue

# More than any demo offers: counts are exact below the cap.
CAP: Final = 1_000_000

_ORDERS: Final[LiteralString] = """
SELECT
    count(*),
    count(*) FILTER (WHERE state = 'open'),
    count(*) FILTER (WHERE state = 'paid'),
    count(*) FILTER (WHERE state = 'closed'),
    count(*) FILTER (WHERE state = 'paid' AND NOT EXISTS (
        SELECT 1 FROM example_project_delivery AS delivery WHERE delivery.order_id = placed.order_id
    ))
FROM example_project_order AS placed
"""

# A second delivery is a retry if the one before it ended in a failure. If that one never
# started, never ended, or ended without the queue hearing of it, its worker was lost.
_DELIVERIES: Final[LiteralString] = """
SELECT
    count(*),
    count(*) FILTER (WHERE this.attempt = 1),
    count(*) FILTER (WHERE earlier.outcome = 'timed out'),
    count(*) FILTER (WHERE this.attempt > 1 AND earlier.outcome IS DISTINCT FROM 'timed out'),
    COALESCE(percentile_disc(0.5) WITHIN GROUP (ORDER BY this.late), 0),
    COALESCE(percentile_disc(0.99) WITHIN GROUP (ORDER BY this.late), 0),
    COALESCE(max(this.late), 0)
FROM (
    SELECT order_id, attempt, extract(epoch FROM started_at - due_at)::float8 * 1000 AS late
    FROM example_project_delivery
) AS this
LEFT JOIN example_project_delivery AS earlier
    ON earlier.order_id = this.order_id AND earlier.attempt = this.attempt - 1
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts of orders, deliveries and messages; lateness in milliseconds.

    ``dropped`` are the paid orders whose message never reached a worker.
    """

    orders: int
    open: int
    paid: int
    closed: int
    dropped: int

    delivered: int
    first: int
    retried: int
    redelivered: int
    late_p50: float
    late_p99: float
    late_max: float

    scheduled: int
    due: int
    leased: int
    dead: int

    @property
    def messages(self) -> int:
        """Messages still in the queue, in any state."""
        return self.scheduled + self.due + self.leased

    @property
    def lateness(self) -> str:
        return (
            f"p50 {self.late_p50:,.0f} ms, p99 {self.late_p99:,.0f} ms, max {self.late_max:,.0f} ms"
        )


def count() -> Figures:
    """Return the figures of this moment."""
    stats = queue.stats(cap=CAP)
    with connection.cursor() as cursor:
        cursor.execute(_ORDERS)
        orders = cursor.fetchone()
        cursor.execute(_DELIVERIES)
        deliveries = cursor.fetchone()
    messages = (stats.scheduled, stats.due, stats.leased, stats.dead)
    return Figures(*(*orders, *deliveries, *messages))
