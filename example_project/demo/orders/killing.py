"""The kill on the way: a worker dies by SIGKILL while it has messages in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.db import connection
from django.db.models import Count

from example_project.demo.database import database_now
from example_project.demo.processes import Child
from example_project.models import Delivery

ARRIVAL_SECONDS: Final = 0.02

# What became of the deliveries that the killed worker had begun and not ended.
_RETURNS: Final = """
SELECT
    count(*),
    count(back.started_at),
    max(extract(epoch FROM back.started_at - %(killed_at)s)::float8)
FROM example_project_delivery AS cut
LEFT JOIN LATERAL (
    SELECT later.started_at
    FROM example_project_delivery AS later
    WHERE later.order_id = cut.order_id
        AND later.attempt > cut.attempt
        AND later.outcome <> 'unfinished'
    ORDER BY later.attempt
    LIMIT 1
) AS back ON true
WHERE cut.worker = %(worker)s AND cut.outcome = 'unfinished'
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """Which worker was killed when, on the database's clock."""

    worker: int
    killed_at: datetime
    after: timedelta
    in_flight: int


@dataclass(frozen=True, slots=True)
class Returns:
    """Of the killed worker's begun deliveries, how many came back, and how soon the last."""

    in_flight: int
    came_back: int
    seconds: float


def kill_one(workers: Sequence[Child], opened_at: datetime, wanted: int) -> Kill | None:
    """Kill the worker with the most in flight, if any has as many as wanted."""
    in_flight = _in_flight()
    victim = max(workers, key=lambda each: in_flight.get(each.pid, 0))
    if in_flight.get(victim.pid, 0) < wanted:
        return None
    # Suspended first, so that nothing in flight can end between the look and the kill; what
    # it had sent to the database by then gets the time to arrive.
    victim.suspend()
    time.sleep(ARRIVAL_SECONDS)
    if _in_flight().get(victim.pid, 0) == 0:
        victim.resume()
        return None
    victim.kill()
    now = database_now()
    return Kill(victim.pid, now, now - opened_at, _in_flight().get(victim.pid, 0))


def _in_flight() -> dict[int, int]:
    unfinished = Delivery.objects.filter(outcome=Delivery.Outcome.UNFINISHED)
    return dict(unfinished.values_list("worker").annotate(Count("pk")))


def returns_after(kill: Kill) -> Returns:
    """Return what became of the messages that were in flight."""
    with connection.cursor() as cursor:
        cursor.execute(_RETURNS, {"worker": kill.worker, "killed_at": kill.killed_at})
        in_flight, came_back, seconds = cursor.fetchone()
    return Returns(in_flight, came_back, seconds or 0.0)
