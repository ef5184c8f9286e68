"""Locked and redriven jobs, and rows inserted directly."""

from __future__ import annotations

from typing import Any

import psycopg

from delayed_queue.http.store.topics import LOCK_JOBS, LOCK_JOBS_OF_LETTERS, LOCK_TOPICS_OF_LETTERS
from delayed_queue.queue.store.dead_letters import REDRIVE, family_params

Connection = psycopg.Connection[Any]


def hold_job(connection: Connection, job_id: str = "a") -> None:
    connection.execute("BEGIN")
    connection.execute(LOCK_JOBS, {"topic": "orders", "keys": [job_id]})


def insert(connection: Connection, kind: str, key: str = "a") -> None:
    connection.execute(
        """
        INSERT INTO delayed_queue
            ("pKey", "pKind", payload, "scheduledAt", "scheduledAtInitially", "createdAt")
        VALUES (%s, %s, '1', 0, 0, 0)
        """,
        [key, kind],
    )


def redriving(connection: Connection, *letters: int, kind: str | None = None) -> None:
    """Redrive on the connection as queues and the admin do, without the commit."""
    params = {"ids": list(letters), "kind": kind, "overwrite": False, "now": None, "most": 200}
    params |= family_params()
    connection.execute("BEGIN")
    for each in (LOCK_TOPICS_OF_LETTERS, LOCK_JOBS_OF_LETTERS, REDRIVE):
        connection.execute(each, params)
