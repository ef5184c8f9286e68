"""The application of huey: its storage and its tasks."""

from __future__ import annotations

import sys

import protocol
from huey import PostgresHuey

# Making the tables at every start would wait where workers are to wait for jobs.
huey = PostgresHuey("benchmark", dsn="", results=False, create_tables="schema" in sys.argv)


@huey.task()
def noop(text: str) -> None:
    """Do nothing."""


@huey.task()
def stamped(offered_at: float) -> None:
    protocol.stamp(offered_at)
