"""Run statements on the connection of a Django alias.

Django's cursors are the reference. A connection that is plainly Django's own has a session, over
which several statements take one round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import psycopg
from django.db import Error, connections, transaction

from delayed_queue.db.exchange import Exchange, result_of
from delayed_queue.db.session import Kept, Session, Statement, prepares, session_of
from delayed_queue.db.sql import NOTIFY, Step
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
        return _fetch_by_cursor(connection, statement, params)
    kept = _kept(connection, session)
    with connection.wrap_database_errors:
        return session.rows(result_of(session, statement, params, kept))


def execute(using: str, statement: str, params: Mapping[str, Any]) -> int:
    """Run a statement that returns no rows, and return the number of rows that it changed."""
    connection = connections[using]
    session = session_of(connection)
    if session is None:
        with connection.cursor() as cursor:
            cursor.execute(statement, dict(params))
            return int(cursor.rowcount)
    kept = _kept(connection, session)
    with connection.wrap_database_errors:
        return result_of(session, statement, params, kept).command_tuples or 0


def fetch_all(
    using: str, statements: Sequence[Statement], *, settings: Sequence[Statement] = ()
) -> list[list[Row]]:
    """Run several statements in one transaction, outside of one in one round trip.

    ``settings`` are statements that change settings until its end, and run first; not in a
    transaction of the caller's, the rest of which they would change too.
    """
    connection = connections[using]
    steps = [*_own_settings(connection, settings), *statements]
    if len(steps) == 1:
        return [fetch(using, *steps[0])]
    session = session_of(connection)
    if session is None:
        with transaction.atomic(using=using):
            return _fetch_in_turn(connection, steps)[-len(statements) :]
    at_once = _within if connection.in_atomic_block else _at_once
    return at_once(connection, session, steps)[-len(statements) :]


def fetch_all_at_once(using: str, statements: Sequence[Statement]) -> list[list[Row]]:
    """Run statements in one round trip; an error of one ends all, and an open transaction."""
    connection = connections[using]
    session = session_of(connection)
    if session is not None:
        return _at_once(connection, session, statements)
    if connection.in_atomic_block:
        return _fetch_in_turn(connection, statements)
    return fetch_all(using, statements)


def fetch_and_notify(
    using: str, statement: str, params: Mapping[str, Any], channel: str
) -> list[Row]:
    """Run a statement and wake the listeners of the channel, in one round trip.

    Outside a transaction each commits by itself, and a failing NOTIFY is no error: pollers
    poll again after their interval. An open transaction includes both, the NOTIFY only if the
    statement returned a row.
    """
    connection = connections[using]
    if not connection.in_atomic_block and (session := session_of(connection)) is not None:
        return _at_once(connection, session, [(statement, params)], [channel])[0]
    rows = fetch(using, statement, params)
    if rows:
        notify(using, channel)
    return rows


def fetch_all_and_notify(
    using: str,
    statements: Sequence[Statement],
    channels: Sequence[str],
    *,
    settings: Sequence[Statement] = (),
) -> list[list[Row]]:
    """Run several statements as fetch_all does, and wake listeners as fetch_and_notify does.

    In an open transaction the listeners are woken even if no row was returned.
    """
    connection = connections[using]
    if not channels:
        return fetch_all(using, statements, settings=settings)
    if connection.in_atomic_block and len(statements) == 1:
        # Both at once; and no savepoint, as around no single statement.
        return fetch_all_at_once(using, [*statements, *map(_notifying, channels)])[:1]
    session = None if connection.in_atomic_block else session_of(connection)
    if session is not None:
        steps = [*_own_settings(connection, settings), *statements]
        return _at_once(connection, session, steps, channels)[-len(statements) :]
    found = fetch_all(using, statements, settings=settings)
    for channel in channels:
        notify(using, channel)
    return found


def notify(using: str, channel: str) -> None:
    """Wake the listeners of a channel, at the commit of the open transaction if any."""
    try:
        fetch(using, *_notifying(channel))
    except Error:
        # No error outside a transaction; but one that is open is broken by it.
        if connections[using].in_atomic_block:
            raise


def _notifying(channel: str) -> Statement:
    return NOTIFY, {"channel": channel}


def _own_settings(
    connection: BaseDatabaseWrapper, settings: Sequence[Statement]
) -> Sequence[Statement]:
    is_own = settings and not connection.in_atomic_block and connection.get_autocommit()
    return settings if is_own else ()


# Through Django's cursors


def _fetch_by_cursor(
    connection: BaseDatabaseWrapper, statement: str, params: Mapping[str, Any]
) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(statement, dict(params))
        return cursor.fetchall() if cursor.description else []


def _fetch_in_turn(
    connection: BaseDatabaseWrapper, statements: Sequence[Statement]
) -> list[list[Row]]:
    return [_fetch_by_cursor(connection, *each) for each in statements]


# Over a session


def _kept(
    connection: BaseDatabaseWrapper, session: Session, steps: Sequence[Statement] = ()
) -> Kept:
    """Return the statements whose plans may be kept; None to prepare nothing."""
    return session.kept_among(steps) if prepares(connection) else None


def _at_once(
    connection: BaseDatabaseWrapper,
    session: Session,
    statements: Sequence[Statement],
    channels: Sequence[str] = (),
) -> list[list[Row]]:
    with connection.wrap_database_errors:
        return _exchange(connection, session, statements, channels).rows()


def _exchange(
    connection: BaseDatabaseWrapper,
    session: Session,
    statements: Sequence[Statement],
    channels: Sequence[str],
) -> Exchange:
    # The statements commit before the NOTIFYs. A NOTIFY holds a database-wide lock until its
    # transaction has reached the disk, and must not make the offers of all queues wait for it.
    notices = [_notifying(each) for each in channels]
    groups = [statements, notices] if notices else [statements]
    return Exchange(session, groups, _kept(connection, session, statements))


def _within(
    connection: BaseDatabaseWrapper, session: Session, statements: Sequence[Statement]
) -> list[list[Row]]:
    """Run statements as a part of a transaction that their failure does not end."""
    before: Statement = (f"SAVEPOINT {_STEPS}", {})
    behind: Statement = (f"RELEASE SAVEPOINT {_STEPS}", {})
    try:
        return _at_once(connection, session, [before, *statements, behind])[1:-1]
    except Error:
        # No savepoint if the transaction was broken before, or the connection is lost.
        with suppress(psycopg.Error):
            session.raw.execute(f"ROLLBACK TO SAVEPOINT {_STEPS}", prepare=False)
            session.raw.execute(f"RELEASE SAVEPOINT {_STEPS}", prepare=False)
        raise


def run(using: str, steps: Sequence[Step], channels: Sequence[str] = ()) -> list[list[Row]]:
    """Return each step's rows; either all have taken effect or, when it raises, none.

    Then the listeners of the channels are woken.
    """
    return fetch_all_and_notify(using, steps, channels)


class Sent:
    """A ``run()`` that is sent now and answered later, on a connection used for nothing else.

    To be made and read by one thread, which may use other connections in between. Where Django's
    cursors have to be used it runs when its answers are asked for, on the alias's connection.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, steps: Sequence[Step], channels: Sequence[str] = ()
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
