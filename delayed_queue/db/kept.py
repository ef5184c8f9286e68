"""Connections that a thread keeps from one handler to the next."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

import psycopg
from django.db import connections

from delayed_queue.db.resilience import has_unread

# A connection of Django. The stubs of its class lack what health checks use.
Connection = Any
_CHECK: Final = "close_if_health_check_failed"


def expect_first_statement(kept: Iterable[Connection]) -> None:
    """Replace a connection that was cut, before the first statement of the next handler.

    Not before later statements, which may rely on the state of the session.
    """
    for connection in kept:
        connection.health_check_done = False
        # Django's check is a round trip, and off unless CONN_HEALTH_CHECKS is set.
        if not connection.health_check_enabled and _CHECK not in vars(connection):
            connection.close_if_health_check_failed = partial(_close_if_cut, connection)


def _close_if_cut(connection: Connection) -> None:
    raw = connection.connection
    if raw is None or connection.health_check_done or connection.in_atomic_block:
        return
    connection.health_check_done = True
    if has_unread(raw) and not connection.is_usable():
        connection.close()


def is_unconnected(error: BaseException, using: str) -> bool:
    """True if the error, or a cause of it, is a failure to connect to the alias."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:  # a chain may be a loop
        seen.add(id(cause))
        if isinstance(cause, psycopg.OperationalError) and cause.pgconn is not None:
            return _is_of(cause.pgconn, using)
        cause = cause.__cause__
    return False


def _is_of(pgconn: psycopg.pq.abc.PGconn, using: str) -> bool:
    """True if the attempt to connect was made for the alias."""
    settings = connections.settings[using]
    found = {"NAME": pgconn.db, "HOST": pgconn.host, "PORT": pgconn.port}
    wanted = {name: str(settings[name] or "").encode() for name in found}
    return all(not wanted[name] or wanted[name] == value for name, value in found.items())
