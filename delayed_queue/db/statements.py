"""Run statements on the connection of a Django alias: prepared, binary, in few round trips."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

import psycopg
from django.db import Error, connections, transaction

from delayed_queue.conf import get_settings
from delayed_queue.db.sql import NOTIFY, ONE_PLAN
from delayed_queue.db.sql import Row as Row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
Cursor = psycopg.Cursor[Row]
Statement = tuple[str, Mapping[str, Any]]


class _RefusableCursor(psycopg.Cursor[tuple[Any, ...]]):
    """A cursor that keeps what the server refused its statement with.

    When a session is ended, psycopg reads that answer in a pipeline, goes on reading, and tells
    of the broken connection alone; but it matters that the statement has not happened.
    """

    refusal: psycopg.Error | None = None

    def _check_results(self, results: Any) -> None:
        try:
            super()._check_results(results)
        except psycopg.Error as error:
            self.refusal = error
            raise


AllExecutor = Callable[[psycopg.Connection[Row], Sequence[Statement], bool], list[list[Row]]]

# The savepoint before what the handler of a consumed message writes.
HANDLER: Final = "delayed_queue_handler"
_SAVEPOINT: Final = f"SAVEPOINT {HANDLER}"
# Around the statements of one call in a caller's transaction, which it must leave usable.
_STEPS: Final = "delayed_queue_steps"

# How a session ends that somebody ends, or the server with all others.
_ENDINGS: Final = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.DatabaseDropped,
    psycopg.errors.IdleSessionTimeout,
)

# How the commit of a NOTIFY fails: the queue is full, or the wait for the lock was too long.
_NOTIFY_FAILURES: Final = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
)


Executor = Callable[[_RefusableCursor, str, Mapping[str, Any], bool], None]

# What is asked of a cursor that has run. Never its description: it is made anew each time.
_rows: Callable[[Any], list[Row]] = methodcaller("fetchall")
_count: Callable[[Any], int] = attrgetter("rowcount")


def fetch(using: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run a statement on the alias's connection and return its rows.

    Takes part in the transaction that is open there, if any; otherwise it commits by itself.
    Raises Django's database errors, as its own cursors do.
    """
    return _run(connections[using], statement, params, _rows)


def execute(using: str, statement: str, params: Mapping[str, Any]) -> int:
    """Run a statement that returns no rows, and return how many it changed."""
    return _run(connections[using], statement, params, _count)


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
    if not _can_pipeline(connection):
        with transaction.atomic(using=using):
            return [fetch(using, *each) for each in steps][-len(statements) :]
    execute_all = _execute_within if connection.in_atomic_block else _execute_all
    return _pipelined(connection, steps, execute_all)[-len(statements) :]


def fetch_all_at_once(using: str, statements: Sequence[Statement]) -> list[list[Row]]:
    """Run statements in one round trip; psycopg waits for a BEGIN that is due before that."""
    connection = connections[using]
    if not _can_pipeline(connection):
        return [fetch(using, *each) for each in statements]
    return _pipelined(connection, statements, _execute_all)


def _pipelined(
    connection: BaseDatabaseWrapper, statements: Sequence[Statement], execute_all: AllExecutor
) -> list[list[Row]]:
    prepare = _ready(connection)
    return _directly(connection, lambda raw: execute_all(raw, statements, prepare))


def _ready(connection: BaseDatabaseWrapper) -> bool:
    """Connect, and return whether statements are to be prepared."""
    connection.ensure_connection()
    return _plans_each_time(connection)


def _own_settings(
    connection: BaseDatabaseWrapper, settings: Sequence[Statement]
) -> Sequence[Statement]:
    is_own = settings and not connection.in_atomic_block and connection.get_autocommit()
    return settings if is_own else ()


def fetch_and_notify(
    using: str, statement: str, params: Mapping[str, Any], channel: str
) -> list[Row]:
    """Run a statement and wake the listeners of the channel, in one round trip.

    Outside a transaction each commits by itself, and a failing NOTIFY is no error: pollers
    look by themselves at their next interval. One that is open takes in both, the NOTIFY only
    if the statement returned a row.
    """
    connection = connections[using]
    if _can_pipeline(connection) and not connection.in_atomic_block:
        return _run(connection, statement, params, _rows, partial(_execute_and_notify, channel))
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

    But in an open transaction whether or not a row came back.
    """
    connection = connections[using]
    if not channels:
        return fetch_all(using, statements, settings=settings)
    if connection.in_atomic_block and len(statements) == 1:
        # Both at once; and no savepoint, as around no single statement.
        announcements = [(NOTIFY, {"channel": channel}) for channel in channels]
        return fetch_all_at_once(using, [*statements, *announcements])[:1]
    if connection.in_atomic_block or not _can_pipeline(connection):
        found = fetch_all(using, statements, settings=settings)
        for channel in channels:
            notify(using, channel)
        return found
    steps = [*_own_settings(connection, settings), *statements]
    prepare = _ready(connection)
    found = _directly(
        connection, lambda raw: _execute_all_and_notify(raw, steps, channels, prepare)
    )
    return found[-len(statements) :]


def fetch_at_once(using: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run a statement in a pipeline; psycopg waits for a BEGIN that is due before that."""
    connection = connections[using]
    if not _can_pipeline(connection):
        return fetch(using, statement, params)
    return _run(connection, statement, params, _rows, _execute_at_once)


def fetch_and_save(using: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run a statement and set the savepoint HANDLER behind it, in one round trip."""
    connection = connections[using]
    if _can_pipeline(connection):
        return _run(connection, statement, params, _rows, _execute_and_save)
    rows = fetch(using, statement, params)
    execute(using, _SAVEPOINT, {})
    return rows


def notify(using: str, channel: str) -> None:
    """Wake the listeners of a channel, at the commit of the open transaction if any."""
    try:
        fetch(using, NOTIFY, {"channel": channel})
    except Error:
        # No error outside; but an open transaction is broken by it, and must be told.
        if connections[using].in_atomic_block:
            raise


def check_constraints(using: str) -> None:
    """Raise what a deferred constraint would raise at the commit; they stay deferred.

    Django's method of that name needs two round trips for it.
    """
    with connections[using].cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")


def _execute(cursor: Cursor, statement: str, params: Mapping[str, Any], prepare: bool) -> None:
    cursor.execute(statement, params, prepare=prepare, binary=True)


def _run(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    answer: Callable[[Any], T],
    executed: Executor = _execute,
) -> T:
    if _is_watched(connection):
        return _run_watched(connection, statement, params, answer)
    connection.ensure_connection()
    prepare = prepares(connection) if statement in ONE_PLAN else plan_each_time(connection.alias)

    def work(raw: psycopg.Connection[Row]) -> T:
        cursor = _RefusableCursor(raw)
        executed(cursor, statement, params, prepare)
        return answer(cursor)

    return _directly(connection, work)


def _directly(connection: BaseDatabaseWrapper, work: Callable[[psycopg.Connection[Row]], T]) -> T:
    with _direct(connection) as raw:
        return work(raw)


@contextmanager
def _direct(connection: BaseDatabaseWrapper) -> Iterator[psycopg.Connection[Row]]:
    """Go straight to psycopg, past Django's cursors, and guard what they guard.

    Prepared statements and binary values, which they do not offer, are worth half of an offer.
    """
    connection.validate_no_broken_transaction()
    raw = connection.connection
    threshold = raw.prepare_threshold
    with connection.wrap_database_errors:
        # Django leaves it None, and then psycopg prepares nothing, whatever is asked of it.
        raw.prepare_threshold = threshold or 0
        try:
            yield raw
        finally:
            raw.prepare_threshold = threshold


def _execute_all(
    raw: psycopg.Connection[Row], statements: Sequence[Statement], prepare: bool
) -> list[list[Row]]:
    cursors: list[_RefusableCursor] = []
    try:
        # Without a sync in between PostgreSQL takes them for one transaction.
        with raw.pipeline():
            for statement, params in statements:
                cursors.append(_RefusableCursor(raw))
                _execute(cursors[-1], statement, params, prepare)
    except psycopg.Error as caught:
        _leave_pipeline(raw)
        raise _refusal_of(cursors) or _first_of(caught) from None
    return [cursor.fetchall() for cursor in cursors]


def _execute_within(
    raw: psycopg.Connection[Row], statements: Sequence[Statement], prepare: bool
) -> list[list[Row]]:
    """Run statements as a part of a transaction that a failure of them does not end."""
    try:
        with raw.pipeline():
            psycopg.Cursor(raw).execute(f"SAVEPOINT {_STEPS}", prepare=prepare)
            cursors = [psycopg.Cursor(raw) for _ in statements]
            for cursor, (statement, params) in zip(cursors, statements, strict=True):
                _execute(cursor, statement, params, prepare)
            psycopg.Cursor(raw).execute(f"RELEASE SAVEPOINT {_STEPS}", prepare=prepare)
    except psycopg.Error as caught:
        _leave_pipeline(raw)
        # Not there if the transaction was broken before, or the connection is lost.
        with suppress(psycopg.Error):
            raw.execute(f"ROLLBACK TO SAVEPOINT {_STEPS}", prepare=False)
            raw.execute(f"RELEASE SAVEPOINT {_STEPS}", prepare=False)
        raise _first_of(caught) from None
    return [cursor.fetchall() for cursor in cursors]


def _execute_and_notify(
    channel: str,
    cursor: _RefusableCursor,
    statement: str,
    params: Mapping[str, Any],
    prepare: bool,
) -> None:
    _commit_and_notify(cursor.connection, [(cursor, statement, params)], [channel], prepare)


def _execute_all_and_notify(
    raw: psycopg.Connection[Row],
    statements: Sequence[Statement],
    channels: Sequence[str],
    prepare: bool,
) -> list[list[Row]]:
    steps = [(_RefusableCursor(raw), *each) for each in statements]
    _commit_and_notify(raw, steps, channels, prepare)
    return [cursor.fetchall() for cursor, _, _ in steps]


def _commit_and_notify(
    raw: psycopg.Connection[Row],
    steps: Sequence[tuple[_RefusableCursor, str, Mapping[str, Any]]],
    channels: Sequence[str],
    prepare: bool,
) -> None:
    with _under_way(raw, steps, channels, prepare):
        pass


@contextmanager
def _under_way(
    raw: psycopg.Connection[Row],
    steps: Sequence[tuple[_RefusableCursor, str, Mapping[str, Any]]],
    channels: Sequence[str],
    prepare: bool,
    *,
    is_sent: bool = False,
) -> Iterator[None]:
    """Send what is to be committed together, then the NOTIFYs; answers are read at the end.

    ``is_sent``: all is sent at the beginning, whether or not there is a NOTIFY.
    """
    announcements = [_RefusableCursor(raw) for _ in channels]
    try:
        with raw.pipeline() as pipeline:
            for cursor, statement, params in steps:
                _execute(cursor, statement, params, prepare)
            # Commits the statements: a NOTIFY takes a database-wide lock until its transaction
            # has reached the disk, and must not make the offers of all queues wait for each
            # other. sync() waits for the answer before the NOTIFY is sent, a round trip more;
            # psycopg has no public name for what does not, so a release without it is slower.
            getattr(pipeline, "_enqueue_sync", pipeline.sync)()
            for announcement, channel in zip(announcements, channels, strict=True):
                announcement.execute(NOTIFY, {"channel": channel}, prepare=prepare)
            if is_sent and not announcements and hasattr(pipeline, "_communicate_gen"):
                raw.wait(pipeline._communicate_gen())  # noqa: SLF001 # nor for this
            yield
    except psycopg.Error as caught:
        _leave_pipeline(raw)
        cursors = [cursor for cursor, _, _ in steps]
        error = _refusal_of(cursors) or _first_of(caught)
        is_executed = all(cursor.rownumber is not None for cursor in cursors)
        if is_executed and isinstance(error, _ENDINGS):
            # Before the commit or behind it: no answer to the statements, whatever it says.
            raise psycopg.OperationalError("the session was ended at the commit") from error
        # Answers come in order: with one to a NOTIFY, the commit before it went well.
        is_stored = is_executed and any(each.rownumber is not None for each in announcements[:1])
        if not is_stored or not isinstance(error, _NOTIFY_FAILURES):
            raise error from None


def _execute_at_once(
    cursor: Cursor, statement: str, params: Mapping[str, Any], prepare: bool
) -> None:
    with cursor.connection.pipeline():
        _execute(cursor, statement, params, prepare)


def _execute_and_save(
    cursor: Cursor, statement: str, params: Mapping[str, Any], prepare: bool
) -> None:
    with cursor.connection.pipeline():
        _execute(cursor, statement, params, prepare)
        psycopg.Cursor(cursor.connection).execute(_SAVEPOINT)


def _can_pipeline(connection: BaseDatabaseWrapper) -> bool:
    return psycopg.Pipeline.is_supported() and not _is_watched(connection)


def _is_watched(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.execute_wrappers) or connection.queries_logged


def _run_watched(
    connection: BaseDatabaseWrapper,
    statement: str,
    params: Mapping[str, Any],
    answer: Callable[[Any], T],
) -> T:
    """Run through Django's cursor, so that query logs, wrappers and test helpers see it."""
    with connection.cursor() as cursor:
        cursor.execute(statement, dict(params))
        return answer(cursor)


# A statement and its parameters.
Step = tuple[str, dict[str, Any]]


def run(using: str, steps: Sequence[Step], channels: Sequence[str] = ()) -> list[list[Row]]:
    """Return each step's rows; either all have taken effect or, when it raises, none.

    Then those who listen on the channels are woken.
    """
    return fetch_all_and_notify(using, steps, channels)


class Sent:
    """What ``run()`` does, begun on a connection of its own that is used for nothing else.

    To be made and read by one thread, which may use other connections in between.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, steps: Sequence[Step], channels: Sequence[str] = ()
    ) -> None:
        prepare = _ready(connection)
        with ExitStack() as stack:
            raw = stack.enter_context(_direct(connection))
            sent = [(_RefusableCursor(raw), *each) for each in steps]
            self._cursors = [cursor for cursor, _, _ in sent]
            stack.enter_context(_under_way(raw, sent, channels, prepare, is_sent=True))
            self._rest = stack.pop_all()

    def answers(self) -> list[list[Row]]:
        """Wait for them; raises what ``run()`` would."""
        self._rest.close()
        return [cursor.fetchall() for cursor in self._cursors]


def can_send(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements can be sent on the connection and answered later."""
    return _can_pipeline(connection)


def _leave_pipeline(raw: psycopg.Connection[Any]) -> None:
    """Read what psycopg leaves unread: for a sync it expects one answer, a failed commit has two.

    Until all is read, the connection cannot be used.
    """
    while not raw.closed and raw.info.pipeline_status is not psycopg.pq.PipelineStatus.OFF:
        try:
            raw.pgconn.exit_pipeline_mode()
        except psycopg.OperationalError:
            raw.pgconn.get_result()


def _refusal_of(cursors: Sequence[_RefusableCursor]) -> psycopg.Error | None:
    """Return what the first of the statements was refused with, if one was."""
    return next((each.refusal for each in cursors if each.refusal is not None), None)


def _first_of(error: psycopg.Error) -> psycopg.Error:
    """Return the error that came first: that a pipeline could not be left follows from it."""
    first = error.__context__
    return first if isinstance(first, psycopg.Error) else error


# For which prepared statements the server keeps a plan, and which it plans each time

_PLAN_EACH_TIME: Final = "SET plan_cache_mode = force_custom_plan"
_told: Final[WeakSet[psycopg.Connection[Any]]] = WeakSet()

# On a connection that runs nothing else, plans are kept, and can be: with these settings even
# one that is made on an empty table goes by the index. A third of a single claim is planning.
# What runs there needs no more than READ COMMITTED, and would fail where it can wait or pass over.
_KEEP_PLANS: Final = """
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET default_transaction_isolation = 'read committed'
"""
_thread = threading.local()


def keep_plans(keep: bool = True) -> None:
    """Have this thread's new connections keep the plans of the package's statements.

    For a thread whose connections run nothing else: other queries would be planned badly.
    """
    _thread.keeps_plans = keep


def keeps_plans() -> bool:
    return getattr(_thread, "keeps_plans", False)


def plan_each_time(using: str) -> bool:
    """Have what is prepared on the connection planned each time; return whether it may be.

    Or once and for all, where the thread asked for it. Once per connection, a round trip. Not
    inside a transaction, whose rollback would undo it; so to be called before one that runs
    many statements on a new connection.
    """
    return _plans_each_time(connections[using])


def _plans_each_time(connection: BaseDatabaseWrapper) -> bool:
    if not prepares(connection):
        return False
    connection.ensure_connection()
    raw = connection.connection
    # A pooler's session is others' too, and what is set in it stays.
    if raw in _told or is_pooled(connection):
        return True
    if not connection.get_autocommit():
        return False
    with connection.wrap_database_errors:
        try:
            raw.execute(_KEEP_PLANS if keeps_plans() else _PLAN_EACH_TIME)
        finally:
            if raw.closed:  # an atomic block that comes next would not replace it
                connection.close()
    _told.add(raw)
    return True


def prepares(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements are prepared on this alias (setting PREPARE)."""
    chosen = get_settings().PREPARE
    if chosen is not None:
        return chosen
    return not is_pooled(connection)


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False))
