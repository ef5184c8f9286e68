"""Repeat a call while the database is away, where the whole call can be repeated."""

from __future__ import annotations

import math
import random
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from django.db import DEFAULT_DB_ALIAS, Error, InterfaceError, OperationalError, connections

from delayed_queue import retries
from delayed_queue.conf import get_settings
from delayed_queue.db.session import is_pooled
from delayed_queue.db.sql import IS_READ_ONLY, LOST_SESSIONS, value_of
from delayed_queue.db.statements import fetch
from delayed_queue.exceptions import InvalidConfiguration, OutcomeUnknown, ResourceUnavailable
from delayed_queue.retries import READ_ONLY, is_transient
from delayed_queue.splits import halves

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
Item = TypeVar("Item")
_MOST_CONFLICTS: Final = 10
# A prepared statement whose columns have other types now, or that was deallocated.
_STALE: Final = ("0A000", "26000")
# Insufficient resources, object not in the required state, operator intervention.
_SERVER_STATE: Final = ("53", "55", "57P0")
_UNDEFINED_TABLE_OR_COLUMN: Final = ("42P01", "42703")
# Errors of a pooler that lost its server, or of a server that crashes: the statement may have taken
# effect. All other SQLSTATEs are replies to a statement that had no effect.
_WITHOUT_REPLY: Final = ("08", "57P02")
_LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True)
class Lost:
    """A call without a reply, which may have taken effect.

    It started between ``since`` and ``until``, in milliseconds of the database's clock. With
    ``is_over`` it has taken effect by now, or never will.
    """

    error: Error
    since: int
    until: int
    is_over: bool

    def unknown(self, message: str | None = None) -> OutcomeUnknown:
        """Return the error to raise when it is unknown whether the call took effect."""
        unknown = OutcomeUnknown(message)
        unknown.__cause__ = self.error
        return unknown


def repeat(
    using: str,
    call: Callable[[], T],
    *,
    doubt: Callable[[T], bool] | None = None,
    truth: Callable[[Lost], T] | None = None,
    tries: Tries | None = None,
) -> T:
    """Return ``call()``, repeated with backoff on transient database errors (Q33).

    In a caller's transaction the error passes through, because its earlier statements cannot be
    repeated here. Raises ResourceUnavailable when the retries are used up.

    A try without a reply may have taken effect. After one, ``truth`` runs instead of the call: it
    returns the result or raises OutcomeUnknown. ``doubt`` is for a call that does nothing the
    second time: it is True for results that a lost try explains ("nothing was deleted"), which
    raise OutcomeUnknown. ``tries`` are earlier ones of the same call.
    """
    try:
        return call() if is_in_transaction(using) else _repeated(using, call, doubt, truth, tries)
    except Error as error:
        if advice := advice_on(error, using):
            error.add_note(advice)
        raise


def never(_answer: object) -> bool:
    """Doubt no result: for a write that leaves the same state however often it runs."""
    return False


def announce(using: str, call: Callable[[], object]) -> None:
    """Run a wake-up; outside a transaction, ignore a lost connection.

    Pollers find within the poll interval what it announces.
    """
    try:
        call()
    except Error as error:
        if is_in_transaction(using) or not is_unavailable(error):
            raise
        drop_if_lost(using)


def _repeated(
    using: str,
    call: Callable[[], T],
    doubt: Callable[[T], bool] | None,
    truth: Callable[[Lost], T] | None,
    tries: Tries | None,
) -> T:
    tries = Tries(using) if tries is None else tries.handed_to(using)
    is_write = doubt is not None or truth is not None
    while True:
        try:
            if is_write:
                tries.begin()
            found = call() if tries.lost is None or truth is None else truth(tries.find_lost())
        except Error as error:
            tries.note(error)
            tries.wait_after(error, is_write=is_write)
        else:
            if tries.lost is not None and doubt is not None and doubt(found):
                raise OutcomeUnknown from tries.lost
            return found


def advice_on(error: Error, using: str) -> str:
    """Return the fix of a missing table or column; empty for any other error."""
    if sqlstate_of(error) not in _UNDEFINED_TABLE_OR_COLUMN:
        return ""
    alias = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
    return (
        f"The database {using!r} lacks tables of delayed_queue, or has them of another version. "
        f"Run manage.py migrate{alias}."
    )


def is_unavailable(error: BaseException) -> bool:
    """True for an outage: the same call may succeed later (W19).

    Outages are errors of the connection (without a SQLSTATE) or of the server's state, and
    conflicts. By any other error the database refuses what the call writes.
    """
    if not isinstance(error, Error):
        return isinstance(error, ResourceUnavailable)
    state = sqlstate_of(error)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return is_transient(state) or state.startswith(_SERVER_STATE)


def write_by_halves(
    items: Sequence[Item],
    write: Callable[[Sequence[Item]], T],
    refused: Callable[[Item, Error], object],
) -> list[T]:
    """Write items together; halve what the database refuses until the refused item is alone.

    ``write`` is one transaction or savepoint. ``refused`` gets each refused item. Raises only
    outages.
    """
    if not items:
        return []
    try:
        return [write(items)]
    except Error as error:
        if is_unavailable(error):
            raise
        if len(items) == 1:
            refused(items[0], error)
            return []
    return [each for half in halves(items) for each in write_by_halves(half, write, refused)]


def is_read_only(using: str) -> bool:
    """True if the database takes no writes from this connection, like a standby."""
    return bool(value_of(fetch(using, IS_READ_ONLY, {})))


def tend(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that is broken or obsolete or, after an error, read-only.

    Django does the former between requests, but keeps a connection to a standby.
    """
    had_errors = connection.errors_occurred
    connection.close_if_unusable_or_obsolete()
    if not had_errors or connection.connection is None or connection.in_atomic_block:
        return
    try:
        if is_read_only(connection.alias):
            connection.close()
    except Error:
        connection.close()


def _conflict_waits() -> Iterator[float]:
    """Yield the seconds before each retry after a conflict: none, then up to 50 ms at random."""
    for number in range(_MOST_CONFLICTS):
        yield random.uniform(0, min(0.001 * (2**number - 1), 0.05))  # noqa: S311


def through_conflicts(call: Callable[[], T]) -> T:
    """Return ``call()``, a whole transaction, repeated at once after conflicts with others."""
    for wait in _conflict_waits():
        try:
            return call()
        except Error as error:
            if not is_conflict(error):
                raise
        time.sleep(wait)
    return call()


def is_conflict(error: BaseException) -> bool:
    """True for a deadlock or a serialization failure."""
    return isinstance(error, Error) and retries.is_conflict(sqlstate_of(error))


def has_stale_plan(error: BaseException) -> bool:
    """True if a statement was prepared before a column changed: a new connection may help.

    A server uses the SQLSTATE also for what it cannot do at all, so a second one is a refusal.
    """
    return isinstance(error, Error) and sqlstate_of(error) in _STALE


def waited_too_long(error: BaseException) -> bool:
    """True if a lock of another transaction was not available in time."""
    return isinstance(error, Error) and sqlstate_of(error) == _LOCK_NOT_AVAILABLE


def is_in_transaction(using: str) -> bool:
    """True in an atomic block of the caller, or while the caller commits by hand."""
    connection = connections[using]
    is_manual = connection.connection is not None and not connection.autocommit
    return connection.in_atomic_block or is_manual


def drop_if_lost(using: str) -> None:
    """Close a connection that an earlier query found lost, so that the next query reconnects.

    Django does that only between requests; until then atomic() would fail.
    """
    connection = connections[using]
    raw = connection.connection
    if raw is not None and raw.closed and not connection.in_atomic_block:
        connection.close()


class Tries:
    """The tries of one call: their time so far, and whether one may have taken effect."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        self._started_at = time.monotonic()
        self._waits: Iterator[float] | None = None
        self._conflict_waits: Iterator[float] | None = None
        # The error of a try that was sent and has no reply.
        self.lost: Error | None = None
        self._lost_at = 0.0
        self._pid = 0
        self._lost_pids: set[int] = set()
        self._is_sent = True
        self._is_renewed = False

    def handed_to(self, using: str) -> Tries:
        """Return a copy to continue with on another thread's connection."""
        others = Tries(using)
        others._started_at = self._started_at
        others.lost, others._lost_at = self.lost, self._lost_at
        others._lost_pids = set(self._lost_pids)
        return others

    def begin(self) -> None:
        """Ensure a connection, so that a loss from here on leaves the outcome unknown.

        Costs a round trip only where the server has sent something unasked, maybe its end.
        """
        self._is_sent = False
        connection = self._connection
        if connection.connection is None:
            connection.ensure_connection()
        elif has_unread(connection.connection) and not connection.is_usable():
            connection.close()
            connection.ensure_connection()
        self._pid = connection.connection.pgconn.backend_pid
        self._is_sent = True

    def note(self, error: Error) -> None:
        """Close a connection that is lost or read-only; remember whether a try was sent."""
        sqlstate = sqlstate_of(error)
        if not _is_lost(self._connection, error) and sqlstate != READ_ONLY:
            return
        if self._is_sent and (sqlstate is None or sqlstate.startswith(_WITHOUT_REPLY)):
            self.lost, self._lost_at = error, time.monotonic()
            self._lost_pids.add(self._pid)
        self._connection.close()

    def find_lost(self) -> Lost:
        """Return the lost tries once their sessions are gone or the waits are used up."""
        # Behind a pooler the number of the server session is unknown.
        is_known = 0 not in self._lost_pids and not is_pooled(self._connection)
        while True:
            asked_at = time.monotonic()
            params = {"pids": list(self._lost_pids), "seconds": asked_at - self._lost_at}
            now, is_there = fetch(self._connection.alias, LOST_SESSIONS, params)[0]
            wait = self._next_wait() if is_there and is_known else None
            if wait is None:
                break
            time.sleep(wait)
        assert self.lost is not None  # noqa: S101 # checked by the caller
        # The clock was read between the query and its reply, and floored to milliseconds.
        since = now - math.ceil((time.monotonic() - self._started_at) * 1000)
        until = now + 1 - math.floor((asked_at - self._started_at) * 1000)
        return Lost(self.lost, since, until, is_known and not is_there)

    def wait_after(self, error: Error, *, is_write: bool) -> None:
        """Sleep before the next try; raise the error if none would help."""
        if self._has_stale_plan(error):
            self._connection.close()
            return
        if not _is_transient(self._connection, error):
            raise error
        wait = self._next_wait_of_conflicts() if is_conflict(error) else self._next_wait()
        if wait is None:
            spent = time.monotonic() - self._started_at
            kind = OutcomeUnknown if is_write and self.lost is not None else ResourceUnavailable
            raise kind(
                f"The database {self._connection.alias!r} stayed unavailable "
                f"for {spent:.1f} s: {error}"
            ) from error
        time.sleep(wait)

    def _has_stale_plan(self, error: Error) -> bool:
        """True for the first error of a stale plan."""
        is_stale = has_stale_plan(error) and not self._is_renewed
        self._is_renewed = self._is_renewed or is_stale
        return is_stale

    def _next_wait_of_conflicts(self) -> float | None:
        """Return the seconds to wait: less than after an outage."""
        self._conflict_waits = self._conflict_waits or _conflict_waits()
        wait = next(self._conflict_waits, None)
        return self._next_wait() if wait is None else wait

    def _next_wait(self) -> float | None:
        """Return the seconds to wait; None when retries or time are used up."""
        backoff = get_settings().BACKOFF
        self._waits = self._waits or iter(backoff.waits())
        wait = next(self._waits, None)
        ends_at = self._started_at + backoff.deadline.total_seconds()
        return None if wait is None or time.monotonic() + wait > ends_at else wait


def has_unread(raw: psycopg.Connection[Any]) -> bool:
    """True if the server has sent something that is unread, which may be its end."""
    try:
        socket = raw.pgconn.socket
    except psycopg.OperationalError:  # closed
        return True
    unread = select.poll()
    unread.register(socket, select.POLLIN)
    return bool(unread.poll(0))


def _is_lost(connection: BaseDatabaseWrapper, error: Error) -> bool:
    # A connection that broke or could not be made reports no SQLSTATE. The connection itself may
    # be a new one: the end of an atomic block replaces it.
    if isinstance(error, OperationalError | InterfaceError) and sqlstate_of(error) is None:
        return True
    raw = connection.connection
    return raw is None or bool(raw.closed)


def _is_transient(connection: BaseDatabaseWrapper, error: Error) -> bool:
    sqlstate = sqlstate_of(error)
    return is_transient(sqlstate) or (sqlstate is None and _is_lost(connection, error))


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of a database error of Django; None for a lost connection."""
    return getattr(error.__cause__, "sqlstate", None)


def tidy_connections(*, idle: bool) -> Sequence[BaseDatabaseWrapper]:
    """Close this thread's connections that failed or, when idle, outlived CONN_MAX_AGE.

    Returns all connections of the thread. Age counts only between bursts of work: with the default
    CONN_MAX_AGE of 0, each message would need a new connection.
    """
    kept = connections.all(initialized_only=True)
    for connection in kept:
        if idle or connection.errors_occurred:
            tend(connection)
    return kept


def check_vendor(using: str) -> None:
    """Raise InvalidConfiguration for a database that is not PostgreSQL."""
    if (vendor := connections[using].vendor) != "postgresql":
        raise InvalidConfiguration(
            f"The database {using!r} is {vendor}; delayed_queue needs PostgreSQL."
        )
