"""Connections to PostgreSQL that the project holds open when the supervisor forks."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
from django.db import connections

from delayed_queue.logs import log

Connection = psycopg.BaseConnection[Any]


def open_connections() -> list[Connection]:
    """Return the open connections that are not Django's, and log one warning with them.

    Call it before the garbage collector's objects are frozen, as it does not list them then.
    """
    djangos = [each.connection for each in connections.all(initialized_only=True)]
    found = [
        each
        for each in gc.get_objects()
        # Not isinstance(), which would evaluate lazy objects.
        if issubclass(type(each), psycopg.BaseConnection) and not each.closed
    ]
    found = [each for each in found if not any(each is django for django in djangos)]
    if found:
        named = ", ".join(map(_named, found))
        log(logging.WARNING, "connections_open_at_fork", count=len(found), connections=named)
    return found


def _named(connection: Connection) -> str:
    info = connection.info
    return f"{info.user}@{info.host}:{info.port}/{info.dbname} (pid {info.backend_pid})"


def disown(inherited: Iterable[Connection]) -> None:
    """Close a child's copies, and leave the server sessions to the parent.

    Processes that share a session would read each other's replies.
    """
    with Path(os.devnull).open("r+b") as null:
        for each in inherited:
            if not each.closed:
                # The closing message to the server goes to the null device.
                os.dup2(null.fileno(), each.fileno())
                each.pgconn.finish()
