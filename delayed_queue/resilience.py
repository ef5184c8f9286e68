"""Repeat a call while the database is away, where the whole call can be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from django.db import Error, InterfaceError, OperationalError, connections

from delayed_queue.conf import get_settings
from delayed_queue.exceptions import OutcomeUnknown, ResourceUnavailable
from delayed_queue.retries import is_transient

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
_FEATURE_NOT_SUPPORTED: Final = "0A000"


def repeat(
    using: str,
    call: Callable[[], T],
    *,
    doubt: Callable[[T], bool] | None = None,
    lost: Error | None = None,
) -> T:
    """Return ``call()``, repeated with backoff on transient database errors (Q33).

    Never inside a caller's transaction: what went before in it cannot be repeated here, so
    there the error passes through. Raises ResourceUnavailable when the retries are used up.

    ``doubt`` marks answers that a lost earlier try could explain ("nothing was deleted",
    because that try had deleted it): after a lost connection they raise OutcomeUnknown.
    """
    if is_in_transaction(using):
        return call()
    connection = connections[using]
    attempts = _Attempts(connection, lost)
    while True:
        try:
            answer = call()
        except Error as error:
            attempts.wait_after(error)
        else:
            if attempts.lost is not None and doubt is not None and doubt(answer):
                raise OutcomeUnknown from attempts.lost
            return answer


def close_if_lost(using: str, error: Error) -> bool:
    """Close a connection that the error says is lost, and with it an answer; return whether."""
    connection = connections[using]
    is_lost = _is_lost(connection, error)
    if is_lost:
        connection.close()
    return is_lost


def is_in_transaction(using: str) -> bool:
    """Return whether what is run now is part of a transaction of the caller's."""
    connection = connections[using]
    return connection.in_atomic_block or _is_manual(connection)


def drop_if_lost(using: str) -> None:
    """Have a connection that an earlier query found lost replaced by the next query.

    Django does that between requests only; until then every entry into atomic() would fail.
    """
    connection = connections[using]
    raw = connection.connection
    if raw is not None and raw.closed and not connection.in_atomic_block:
        connection.close()


class _Attempts:
    """The waits that are left to one call, and whether it has lost a connection yet."""

    def __init__(self, connection: BaseDatabaseWrapper, lost: Error | None = None) -> None:
        self._connection = connection
        self._started_at = time.monotonic()
        self._waits: Iterator[float] | None = None
        self.lost = lost
        self._is_renewed = False

    def wait_after(self, error: Error) -> None:
        """Sleep before the next try, or raise: the error itself if no try would help."""
        if self._has_stale_plan(error):
            self._connection.close()
            return
        if not _is_transient(self._connection, error):
            raise error
        if _is_lost(self._connection, error):
            self.lost = error
            self._connection.close()
        wait = self._next_wait()
        if wait is None:
            spent = time.monotonic() - self._started_at
            raise ResourceUnavailable(
                f"The database {self._connection.alias!r} stayed unavailable "
                f"for {spent:.1f} s: {error}"
            ) from error
        time.sleep(wait)

    def _has_stale_plan(self, error: Error) -> bool:
        """Return whether the statement was prepared before a column got another type.

        PostgreSQL then refuses it until it is prepared anew, on a new connection. Once only:
        the SQLSTATE is also that of what a server cannot do at all.
        """
        is_stale = _sqlstate(error) == _FEATURE_NOT_SUPPORTED and not self._is_renewed
        self._is_renewed = self._is_renewed or is_stale
        return is_stale

    def _next_wait(self) -> float | None:
        """Return the seconds to wait; None when retries or time are used up."""
        backoff = get_settings().BACKOFF
        # Only now: most calls never wait.
        self._waits = self._waits or iter(backoff.waits())
        wait = next(self._waits, None)
        ends_at = self._started_at + backoff.deadline.total_seconds()
        return None if wait is None or time.monotonic() + wait > ends_at else wait


def _is_manual(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the caller commits by hand: then every statement is in a transaction."""
    return connection.connection is not None and not connection.autocommit


def _is_lost(connection: BaseDatabaseWrapper, error: Error) -> bool:
    # A connection that broke under a statement, or could not be made, reports no SQLSTATE. It
    # cannot be asked itself: the end of an atomic block has replaced it by a new one.
    if isinstance(error, OperationalError | InterfaceError) and _sqlstate(error) is None:
        return True
    raw = connection.connection
    return raw is None or bool(raw.closed)


def _is_transient(connection: BaseDatabaseWrapper, error: Error) -> bool:
    sqlstate = _sqlstate(error)
    return is_transient(sqlstate) or (sqlstate is None and _is_lost(connection, error))


def _sqlstate(error: Error) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)
