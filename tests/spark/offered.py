"""Closed jobs and their counts, without Spark."""

from __future__ import annotations

from typing import Any

import psycopg

from delayed_queue.spark import counts
from delayed_queue.spark.database import Link
from delayed_queue.spark.source.ledger import claim_closing
from delayed_queue.spark.source.offering import Job


def close(given_job: Job, total: int) -> None:
    link = Link(given_job.options)
    link.once("closing", lambda session: claim_closing(session, given_job.key, total))
    link.close()


def triple(name: str = "job") -> tuple[int, int, int]:
    found = counts(name)
    return found.created, found.updated, found.ignored


def letters(text: str) -> list[str]:
    return list(text)


def at(milliseconds: int) -> Any:
    from delayed_queue.messages import from_milliseconds

    return from_milliseconds(milliseconds)


def is_anyone_waiting(connection: psycopg.Connection[Any]) -> bool:
    found = connection.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ).fetchone()
    return bool(found and found[0])
