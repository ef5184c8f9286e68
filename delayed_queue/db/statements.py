"""Run statements on the connection of a Django alias.

Django's cursors are the reference. A connection that is plainly Django's own has a session, over
which several statements take one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from django.db import Error, connections, transaction

from delayed_queue.db.exchange import Exchange, result_of
from delayed_queue.db.session import Session, Statement, prepares, session_of
from delayed_queue.db.sql import NOTIFY
from delayed_queue.db.sql import Row as Row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

# Savepoint around the statements of one call in a caller's transaction.
_STEPS: Final = "delayed_queue_steps"


def fetch(using: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run a statement on the alias's connection and return its rows.

    Takes part in the transaction that is open there, if any; otherwise it commits by itself.
    Raises Django's database errors, as its own cursors do.
    """
    connection = connections[using]
    session = session_of(connection)
    if session is None:
        with connection.cursor() as cursor:
            cursor.execute(statement, dict(params))
            return cursor.fetchall() if cursor.description else []
    with connection.wrap_database_errors:
        kept = session.kept_among((), prepares(connection))
        return session.rows(result_of(session, statement, params, kept))


def execute(using: str, statement: str, params: Mapping[str, Any]) -> int:
    """Run a statement that returns no rows, and return the number of rows that it changed."""
    connection = connections[using]
    session = session_of(connection)
    if session is None:
        with connection.cursor() as cursor:
            cursor.execute(statement, dict(params))
            return int(cursor.rowcount)
    with connection.wrap_database_errors:
        kept = session.kept_among((), prepares(connection))
        return result_of(session, statement, params, kept).command_tuples or 0


def run(
    using: str,
    steps: Sequence[Statement],
    channels: Sequence[str] = (),
    *,
    settings: Sequence[Statement] = (),
    savepoint: bool = True,
) -> list[list[Row]]:
    """Run statements in one transaction and wake the channels' listeners, in one round trip.

    Returns the rows of each statement. Either all take effect or, when it raises, none. In an open
    transaction a savepoint sees to that; without it an error ends the transaction. Outside of one
    the NOTIFY has a transaction of its own, and its failure is no error: pollers poll again after
    their interval.

    ``settings`` run first and change settings until the end of the transaction. In an open
    transaction they are left out, because they would apply to the rest of it.
    """
    connection = connections[using]
    if connection.in_atomic_block:
        notices = [_notify_step(each) for each in channels]
        needs_savepoint = savepoint and len(steps) > 1
        return _run_within(connection, [*steps, *notices], needs_savepoint)[: len(steps)]
    own = [*settings, *steps] if connection.get_autocommit() else steps
    session = session_of(connection) if channels or len(own) > 1 else None
    if session is not None:
        with connection.wrap_database_errors:
            return _exchange(connection, session, own, channels).rows()[-len(steps) :]
    with transaction.atomic(using=using) if len(own) > 1 else nullcontext():
        replies = [fetch(using, *each) for each in own]
    for channel in channels:
        notify(using, channel)
    return replies[-len(steps) :]


def notify(using: str, channel: str) -> None:
    """Wake the listeners of a channel, at the commit of the open transaction if any."""
    try:
        fetch(using, *_notify_step(channel))
    except Error:
        # No error outside a transaction; but one that is open is broken by it.
        if connections[using].in_atomic_block:
            raise


class Sent:
    """A ``run()`` that is sent now and read later, on a connection used for nothing else.

    One thread makes and reads it, and may use other connections in between. Where Django's cursors
    have to be used, it runs when it is read.
    """

    def __init__(
        self,
        connection: BaseDatabaseWrapper,
        steps: Sequence[Statement],
        channels: Sequence[str] = (),
    ) -> None:
        self._connection = connection
        self._run = (connection.alias, steps, channels)
        self._exchange: Exchange | None = None
        if (session := session_of(connection)) is not None:
            with connection.wrap_database_errors:
                self._exchange = _exchange(connection, session, steps, channels)
                self._exchange.send()

    def answers(self) -> list[list[Row]]:
        """Wait for the rows of each step; raises what ``run()`` would."""
        if self._exchange is None:
            return run(*self._run)
        with self._connection.wrap_database_errors:
            return self._exchange.rows()


def _notify_step(channel: str) -> Statement:
    return NOTIFY, {"channel": channel}


def _exchange(
    connection: BaseDatabaseWrapper,
    session: Session,
    steps: Sequence[Statement],
    channels: Sequence[str] = (),
) -> Exchange:
    # The statements commit before the NOTIFYs. A NOTIFY holds a database-wide lock until its
    # transaction has reached the disk, and must not make the offers of all queues wait for it.
    groups = [steps, [_notify_step(each) for each in channels]] if channels else [steps]
    return Exchange(session, groups, session.kept_among(steps, prepares(connection)))


def _run_within(
    connection: BaseDatabaseWrapper, steps: Sequence[Statement], needs_savepoint: bool
) -> list[list[Row]]:
    """Run statements as a part of the open transaction."""
    session = session_of(connection)
    if session is None or len(steps) == 1:
        with transaction.atomic(using=connection.alias) if needs_savepoint else nullcontext():
            return [fetch(connection.alias, *each) for each in steps]
    if not needs_savepoint:
        with connection.wrap_database_errors:
            return _exchange(connection, session, steps).rows()
    before: Statement = (f"SAVEPOINT {_STEPS}", {})
    after: Statement = (f"RELEASE SAVEPOINT {_STEPS}", {})
    try:
        with connection.wrap_database_errors:
            return _exchange(connection, session, [before, *steps, after]).rows()[1:-1]
    except Error:
        # No savepoint if the transaction was broken before, or the connection is lost.
        with suppress(psycopg.Error):
            session.raw.execute(f"ROLLBACK TO SAVEPOINT {_STEPS}", prepare=False)
            session.raw.execute(f"RELEASE SAVEPOINT {_STEPS}", prepare=False)
        raise
