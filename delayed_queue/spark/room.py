"""What is checked before a job begins: the tables, and room for its connections."""

from __future__ import annotations

import os
from typing import Final

from delayed_queue.exceptions import SchemaMismatch, TooManyConnections
from delayed_queue.spark.drivers import Session
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.streaming import LOOK_AROUND

# Set by build_session(): how many tasks the session runs at a time.
TASKS: Final = "DELAYED_QUEUE_SPARK_TASKS"


def look_around(session: Session, options: Options, *, leases: int = 0) -> int:
    """Return the database's clock, or raise what would stop the job half-way.

    SchemaMismatch where the tables are missing; TooManyConnections where its tasks, and the
    connections of its leases, are more than the server has left.
    """
    now, most, used, has_queue, has_ledger = session.fetch(LOOK_AROUND, {})[0]
    if not has_queue or not has_ledger:
        missing = "delayed_queue" if not has_queue else "delayed_queue_offer_ledger"
        raise SchemaMismatch(
            f"The database has no table {missing!r}: run manage.py migrate delayed_queue."
        )
    tasks = options.connections or int(os.environ.get(TASKS, "1"))
    # Ours is among those in use, and ends before the first task begins.
    free = most - used + 1
    if tasks + leases > free:
        raise TooManyConnections(
            f"The job may open {tasks + leases} connections ({tasks} tasks, {leases} leases), "
            f"and {free} of {most} are free. Lower the option connections and the cores of the "
            "job (spark.cores.max), or raise max_connections."
        )
    return int(now)
