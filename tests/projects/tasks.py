"""A task."""

from __future__ import annotations

from delayed_queue.tasks._api import task


@task
def add(one: int, other: int) -> int:
    return one + other
