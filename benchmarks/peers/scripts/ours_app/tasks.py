"""The same as tasks; imported only where settings name the backend."""

from __future__ import annotations

import protocol

from delayed_queue.tasks import task


@task(queue_name="tasks")
def noop(text: str) -> None:
    """Do nothing."""


@task(queue_name="tasks-stamped")
def stamped(offered_at: float) -> None:
    protocol.stamp(offered_at)
