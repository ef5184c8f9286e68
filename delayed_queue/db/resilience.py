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

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
Item = TypeVar("Item")
_MOST_CONFLICTS: Final = 10
# A prepared statement whose columns have other types now, and one that somebody has deallocated.
_STALE: Final = ("0A000", "26000")
# Classes of errors about the server's state: resources used up, an object in no state for the
# statement (as under a lock), the operator's intervention. Besides those worth an early retry.
_SERVER_STATE: Final = ("53", "55", "57P0")
_UNDEFINED_TABLE_OR_COLUMN: Final = ("42P01", "42703")
# A pooler says so of a server that it has lost; or the server itself, as it crashes. All other
# SQLSTATEs are the server's answer to a statement that has not happened.
_WITHOUT_ANSWER: Final = ("08", "57P02")
_LOCK_NOT_AVAILABLE: Final = "55P03"


@dataclass(frozen=True, slots=True)
class Lost:
    """A call that was sent and not answered, so that it may have taken effect.

    It began between ``since`` and ``until``, in milliseconds of the database's clock. ``is_over``
    says that by now it has taken effect or never will.
    """

    error: Error
    since: int
    until: int
    is_over: bool

    def unknown(self, message: str | None = None) -> OutcomeUnknown:
        """Return the error to raise when the truth cannot be found out."""
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

    Never inside a caller's transaction: what went before in it cannot be repeated here, so
    there the error passes through. Raises ResourceUnavailable when the retries are used up.

    A try that was sent and not answered may have taken effect, so what must not happen twice is
    not simply repeated. ``truth`` is asked instead: it returns the answer, or raises
    OutcomeUnknown. ``doubt`` is for a call that finds nothing to do the second time: it marks the
    answers that a lost try could explain ("nothing was deleted"), which raise OutcomeUnknown.
    ``tries`` are those that went before.

    Where tables are missing, the error says in a note what to run.
    """
    try:
        return call() if is_in_transaction(using) else _repeated(using, call, doubt, truth, tries)
    except Error as error:
        if advice := advice_on(error, using):
            error.add_note(advice)
        raise


def never(_answer: object) -> bool:
    """Doubt no answer: for a write that leaves the same state however often it runs."""
    return False


def announce(using: str, call: Callable[[], object]) -> None:
    """Run a wake-up; outside a transaction a lost connection is no error of the caller's.

    What it announces is written already, and pollers find it within the poll interval.
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
            answer = call() if tries.lost is None or truth is None else truth(tries.look())
        except Error as error:
            tries.note(error)
            tries.wait_after(error, is_write=is_write)
        else:
            if tries.lost is not None and doubt is not None and doubt(answer):
                raise OutcomeUnknown from tries.lost
            return answer


def advice_on(error: Error, using: str) -> str:
    """Return what mends a table or column that is missing; nothing about any other error."""
    if sqlstate_of(error) not in _UNDEFINED_TABLE_OR_COLUMN:
        return ""
    alias = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
    return (
        f"The database {using!r} lacks tables of delayed_queue, or has them of another version. "
        f"Run manage.py migrate{alias}."
    )


def is_unavailable(error: BaseException) -> bool:
    """True for an outage: the same call may succeed later, whatever it writes (W19).

    That is an error of the connection (which has no SQLSTATE), of the server's state, or a
    conflict. Any other error of the database is a refusal of what the call writes.
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
    """Write items together; split what the database refuses until the refused item is alone.

    ``write`` is one transaction or savepoint. ``refused`` gets each item that is refused alone.
    Raises only outages.
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
    middle = len(items) // 2
    halves = (items[:middle], items[middle:])
    return [each for half in halves for each in write_by_halves(half, write, refused)]


def is_read_only(using: str) -> bool:
    """Ask the database whether it takes no writes from this connection: as a standby takes none."""
    return bool(value_of(fetch(using, IS_READ_ONLY, {})))


def tend(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that is broken or obsolete; after an error, one that only reads, too.

    Django, who does the former between requests, would keep one to a standby.
    """
    had_errors = connection.errors_occurred
    connection.close_if_unusable_or_obsolete()
    if not had_errors or connection.connection is None or connection.in_atomic_block:
        return
    try:
        is_of_use = not is_read_only(connection.alias)
    except Error:
        is_of_use = False
    if not is_of_use:
        connection.close()


def _conflict_waits() -> Iterator[float]:
    """Yield the seconds before each repetition after a conflict: none, then up to 50 ms."""
    for number in range(_MOST_CONFLICTS):
        # Not security: those who met are not to meet again.
        yield random.uniform(0, min(0.001 * (2**number - 1), 0.05))  # noqa: S311


def through_conflicts(call: Callable[[], T]) -> T:
    """Return ``call()``, a whole transaction, repeated at once while others conflict with it."""
    for wait in _conflict_waits():
        try:
            return call()
        except Error as error:
            if not is_conflict(error):
                raise
        time.sleep(wait)
    return call()


def is_conflict(error: BaseException) -> bool:
    """Return whether a transaction was ended because of others that ran beside it."""
    return isinstance(error, Error) and retries.is_conflict(sqlstate_of(error))


def has_stale_plan(error: BaseException) -> bool:
    """True if a new connection may help: the statement was prepared before a column changed.

    The SQLSTATE is also that of what a server cannot do at all, so a second one is a refusal.
    """
    return isinstance(error, Error) and sqlstate_of(error) in _STALE


def waited_too_long(error: BaseException) -> bool:
    """Return whether the wait for another transaction's lock was given up."""
    return isinstance(error, Error) and sqlstate_of(error) == _LOCK_NOT_AVAILABLE


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


class Tries:
    """The tries of one call: how long they have lasted, and whether one may have taken effect."""

    def __init__(self, using: str) -> None:
        self._connection = connections[using]
        self._started_at = time.monotonic()
        self._waits: Iterator[float] | None = None
        self._conflict_waits: Iterator[float] | None = None
        # The error of a try that was sent and not answered.
        self.lost: Error | None = None
        self._lost_at = 0.0
        self._pid = 0
        self._lost_pids: set[int] = set()
        self._is_sent = True
        self._is_renewed = False

    def handed_to(self, using: str) -> Tries:
        """Return them for another thread, to go on with on its own connection."""
        others = Tries(using)
        others._started_at = self._started_at
        others.lost, others._lost_at = self.lost, self._lost_at
        others._lost_pids = set(self._lost_pids)
        return others

    def begin(self) -> None:
        """Have a connection that nothing says is gone, so that one lost from here on is in doubt.

        No round trip, but where the server has sent something unasked: that may be its farewell.
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
        """Close a connection that is lost, or that only reads; remember what was sent over it."""
        sqlstate = sqlstate_of(error)
        if not _is_lost(self._connection, error) and sqlstate != READ_ONLY:
            return
        if self._is_sent and (sqlstate is None or sqlstate.startswith(_WITHOUT_ANSWER)):
            self.lost, self._lost_at = error, time.monotonic()
            self._lost_pids.add(self._pid)
        self._connection.close()

    def look(self) -> Lost:
        """Return what is known of the lost tries, once they are over or the waits are used up."""
        # A pooler's number is none of the server's.
        is_known = 0 not in self._lost_pids and not is_pooled(self._connection)
        while True:
            asked_at = time.monotonic()
            params = {"pids": list(self._lost_pids), "seconds": asked_at - self._lost_at}
            now, is_there = fetch(self._connection.alias, LOST_SESSIONS, params)[0]
            wait = self._next_wait() if is_there and is_known else None
            if wait is None:
                break
            time.sleep(wait)
        assert self.lost is not None  # noqa: S101 # only then it is asked
        # The clock's reading is between asking and answer, and cut off to milliseconds.
        since = now - math.ceil((time.monotonic() - self._started_at) * 1000)
        until = now + 1 - math.floor((asked_at - self._started_at) * 1000)
        return Lost(self.lost, since, until, is_known and not is_there)

    def wait_after(self, error: Error, *, is_write: bool) -> None:
        """Sleep before the next try, or raise: the error itself if no try would help."""
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
        """Return whether the statement was prepared before a column got another type.

        PostgreSQL then refuses it until it is prepared anew, on a new connection. Once only:
        the SQLSTATE is also that of what a server cannot do at all.
        """
        is_stale = has_stale_plan(error) and not self._is_renewed
        self._is_renewed = self._is_renewed or is_stale
        return is_stale

    def _next_wait_of_conflicts(self) -> float | None:
        """Return less than after an outage, for the database is there."""
        self._conflict_waits = self._conflict_waits or _conflict_waits()
        wait = next(self._conflict_waits, None)
        return self._next_wait() if wait is None else wait

    def _next_wait(self) -> float | None:
        """Return the seconds to wait; None when retries or time are used up."""
        backoff = get_settings().BACKOFF
        # Only now: most calls never wait.
        self._waits = self._waits or iter(backoff.waits())
        wait = next(self._waits, None)
        ends_at = self._started_at + backoff.deadline.total_seconds()
        return None if wait is None or time.monotonic() + wait > ends_at else wait


def has_unread(raw: psycopg.Connection[Any]) -> bool:
    """Return whether there is something to read from the server, be it the end."""
    try:
        socket = raw.pgconn.socket
    except psycopg.OperationalError:  # closed, and known to be
        return True
    unread = select.poll()
    unread.register(socket, select.POLLIN)
    return bool(unread.poll(0))


def _is_manual(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the caller commits by hand: then every statement is in a transaction."""
    return connection.connection is not None and not connection.autocommit


def _is_lost(connection: BaseDatabaseWrapper, error: Error) -> bool:
    # A connection that broke under a statement, or could not be made, reports no SQLSTATE. It
    # cannot be asked itself: the end of an atomic block has replaced it by a new one.
    if isinstance(error, OperationalError | InterfaceError) and sqlstate_of(error) is None:
        return True
    raw = connection.connection
    return raw is None or bool(raw.closed)


def _is_transient(connection: BaseDatabaseWrapper, error: Error) -> bool:
    sqlstate = sqlstate_of(error)
    return is_transient(sqlstate) or (sqlstate is None and _is_lost(connection, error))


def sqlstate_of(error: BaseException) -> str | None:
    """Return the SQLSTATE of one of Django's database errors; None for a lost connection."""
    return getattr(error.__cause__, "sqlstate", None)


def tidy_connections(*, idle: bool) -> Sequence[BaseDatabaseWrapper]:
    """Close this thread's connections that are of no use or, when idle, outlived CONN_MAX_AGE.

    Return all that it has. Django does this around each request. Here, with the default
    CONN_MAX_AGE of 0, it would mean a new connection for each message; so age counts only between
    bursts of work.
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
