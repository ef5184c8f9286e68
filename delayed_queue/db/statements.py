"""Run statements on the connection of a Django alias: prepared, binary, in few round trips."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, count
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import Error, connections, transaction
from psycopg import generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus, TransactionStatus

from delayed_queue.conf import get_settings
from delayed_queue.db.sql import NOTIFY, ONE_PLAN, tell_how_to_plan
from delayed_queue.db.sql import Row as Row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from psycopg.pq.abc import PGresult

T = TypeVar("T")
Statement = tuple[str, Mapping[str, Any]]


# Around the statements of one call in a caller's transaction, which it must leave usable.
_STEPS: Final = "delayed_queue_steps"

# How a session ends that somebody ends, or the server with all others.
_ENDINGS: Final = (
    psycopg.errors.AdminShutdown,
    psycopg.errors.CrashShutdown,
    psycopg.errors.DatabaseDropped,
    psycopg.errors.IdleSessionTimeout,
)

# How a NOTIFY fails: the queue is full, the wait for the lock was too long, or somebody has
# deallocated what was prepared.
_NOTIFY_FAILURES: Final = (
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.QueryCanceled,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.InvalidSqlStatementName,
)


# What an answer is read as, where Django's cursors are used.
_rows: Final[Callable[[Any], list[Row]]] = methodcaller("fetchall")
_count: Final[Callable[[Any], int]] = attrgetter("rowcount")


def fetch(using: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run a statement on the alias's connection and return its rows.

    Takes part in the transaction that is open there, if any; otherwise it commits by itself.
    Raises Django's database errors, as its own cursors do.
    """
    connection = connections[using]
    if _is_watched(connection):
        return _run_watched(connection, statement, params, _rows)
    session, prepare = _ready(connection, statement)
    with connection.wrap_database_errors:
        return session.rows(session.ask(statement, params, prepare))


def execute(using: str, statement: str, params: Mapping[str, Any]) -> int:
    """Run a statement that returns no rows, and return how many it changed."""
    connection = connections[using]
    if _is_watched(connection):
        return _run_watched(connection, statement, params, _count)
    session, prepare = _ready(connection, statement)
    with connection.wrap_database_errors:
        return session.ask(statement, params, prepare).command_tuples or 0


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
    at_once = _within if connection.in_atomic_block else _at_once
    return at_once(connection, steps)[-len(statements) :]


def fetch_all_at_once(using: str, statements: Sequence[Statement]) -> list[list[Row]]:
    """Run statements in one round trip, which an error of one ends, as it does a transaction."""
    connection = connections[using]
    if not _can_pipeline(connection):
        return [fetch(using, *each) for each in statements]
    return _at_once(connection, statements)


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
        return _at_once(connection, [(statement, params)], [channel])[0]
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
        return fetch_all_at_once(using, [*statements, *map(_notifying, channels)])[:1]
    if connection.in_atomic_block or not _can_pipeline(connection):
        found = fetch_all(using, statements, settings=settings)
        for channel in channels:
            notify(using, channel)
        return found
    steps = [*_own_settings(connection, settings), *statements]
    return _at_once(connection, steps, channels)[-len(statements) :]


def notify(using: str, channel: str) -> None:
    """Wake the listeners of a channel, at the commit of the open transaction if any."""
    try:
        fetch(using, *_notifying(channel))
    except Error:
        # No error outside; but an open transaction is broken by it, and must be told.
        if connections[using].in_atomic_block:
            raise


def _notifying(channel: str) -> Statement:
    return NOTIFY, {"channel": channel}


def _own_settings(
    connection: BaseDatabaseWrapper, settings: Sequence[Statement]
) -> Sequence[Statement]:
    is_own = settings and not connection.in_atomic_block and connection.get_autocommit()
    return settings if is_own else ()


def _at_once(
    connection: BaseDatabaseWrapper,
    statements: Sequence[Statement],
    channels: Sequence[str] = (),
) -> list[list[Row]]:
    session, prepare = _ready(connection, statements[0][0] if len(statements) == 1 else "")
    with connection.wrap_database_errors:
        return Exchange(session, _groups(statements, channels), prepare).answers()


def _groups(statements: Sequence[Statement], channels: Sequence[str]) -> list[Sequence[Statement]]:
    # Commits the statements before the NOTIFYs: a NOTIFY takes a database-wide lock until its
    # transaction has reached the disk, and must not make the offers of all queues wait for each
    # other.
    return [statements, [_notifying(each) for each in channels]] if channels else [statements]


def _within(connection: BaseDatabaseWrapper, statements: Sequence[Statement]) -> list[list[Row]]:
    """Run statements as a part of a transaction that a failure of them does not end."""
    before: Statement = (f"SAVEPOINT {_STEPS}", {})
    behind: Statement = (f"RELEASE SAVEPOINT {_STEPS}", {})
    session, prepare = _ready(connection)
    with connection.wrap_database_errors:
        try:
            return Exchange(session, [[before, *statements, behind]], prepare).answers()[1:-1]
        except psycopg.Error:
            # Not there if the transaction was broken before, or the connection is lost.
            with suppress(psycopg.Error):
                session.raw.execute(f"ROLLBACK TO SAVEPOINT {_STEPS}", prepare=False)
                session.raw.execute(f"RELEASE SAVEPOINT {_STEPS}", prepare=False)
            raise


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
        self._connection = connection
        session, prepare = _ready(connection)
        with connection.wrap_database_errors:
            self._exchange = Exchange(session, _groups(steps, channels), prepare)
            self._exchange.send()

    def answers(self) -> list[list[Row]]:
        """Wait for them; raises what ``run()`` would."""
        with self._connection.wrap_database_errors:
            return self._exchange.answers()


def can_send(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements can be sent on the connection and answered later."""
    return _can_pipeline(connection)


# Sessions: statements over libpq

# A statement as libpq takes it: its text, values, types and formats.
_Dumped = tuple[bytes, Sequence[Any], tuple[int, ...], Sequence[Format] | None]
_PLACE: Final = re.compile(r"%(?:%|\((\w+)\)([sb]))")
_FORMATS: Final = {"s": PyFormat.AUTO, "b": PyFormat.BINARY}
_BINARY: Final = Format.BINARY
# How long the server may take to be told that nobody waits for a statement any more.
_CANCEL_SECONDS: Final = 2.0


@lru_cache(maxsize=512)
def _parsed(statement: str) -> tuple[bytes, tuple[str, ...], list[PyFormat]]:
    """Return the statement as PostgreSQL takes it, the names of its places, and their formats."""
    places: dict[tuple[str, str], int] = {}

    def place(found: re.Match[str]) -> str:
        if found[1] is None:
            return "%"
        return f"${places.setdefault((found[1], found[2]), len(places) + 1)}"

    query = _PLACE.sub(place, statement).encode()
    return query, tuple(name for name, _ in places), [_FORMATS[each] for _, each in places]


class Session:
    """A connection as statements are sent over it, and what is prepared there.

    By libpq, for psycopg's cursors and pipelines take longer than most of the statements do, and
    of a pipeline that broke they do not tell how far it had come.
    """

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        # Whether the server knows how plans are to be made.
        self.is_told = False
        self._names: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        self._numbers = count()
        self._transformer = Transformer(raw)

    def ask(self, statement: str, params: Mapping[str, Any], prepare: bool) -> PGresult:
        """Return the answer to a statement; a BEGIN or PREPARE that is due goes along with it."""
        query, values, types, formats = self.dumped(statement, params)
        name = self.name_of(query, types) if prepare else b""
        if name is None or self.must_begin():
            return Exchange(self, [[(statement, params)]], prepare).results()[0]
        pgconn = self.raw.pgconn
        try:
            with self.raw.lock:
                if name:
                    pgconn.send_query_prepared(name, values, formats, _BINARY)
                else:
                    pgconn.send_query_params(query, values, types, formats, _BINARY)
                results: list[PGresult] = self.raw.wait(generators.execute(pgconn))
        except psycopg.Error:
            raise
        except BaseException:
            self.abandon()
            raise
        if error := self.refusal(results):
            raise error
        return results[0]

    def abandon(self) -> None:
        """End the connection if it has something unread: who asks next would be told that.

        To be called by what is interrupted, as by Ctrl-C, for which psycopg cancels the statement
        and reads to its end, or by the handler of another signal, for which it does not.
        """
        if self.raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
            self.cut()

    def cut(self) -> None:
        """Cancel what runs and close: to read on could take as long as a lock is waited for."""
        try:
            # Else it would take effect when it has the lock, though nobody wants it any more.
            with suppress(psycopg.Error):
                self.raw.cancel_safe(timeout=_CANCEL_SECONDS)
        finally:
            self.raw.close()

    def named(self, query: bytes, types: tuple[int, ...]) -> bytes:
        """Return a new name for a statement that is about to be prepared."""
        name = self._names[query, types] = b"delayed_queue_%d" % next(self._numbers)
        return name

    def forget(self, statements: Iterable[tuple[bytes, tuple[int, ...]]]) -> None:
        """Prepare these anew when they come again: whether they are prepared is not known."""
        for each in statements:
            self._names.pop(each, None)

    def name_of(self, query: bytes, types: tuple[int, ...]) -> bytes | None:
        return self._names.get((query, types))

    def must_begin(self) -> bool:
        """Return whether a transaction is to be begun before the next statement."""
        raw = self.raw
        return not raw.autocommit and raw.pgconn.transaction_status == TransactionStatus.IDLE

    def begin(self) -> bytes:
        """Return what begins it, as psycopg would."""
        raw, parts = self.raw, ["BEGIN"]
        if raw.isolation_level is not None:
            level = psycopg.IsolationLevel(raw.isolation_level)
            parts.append(f"ISOLATION LEVEL {level.name.replace('_', ' ')}")
        if raw.read_only is not None:
            parts.append("READ ONLY" if raw.read_only else "READ WRITE")
        if raw.deferrable is not None:
            parts.append("DEFERRABLE" if raw.deferrable else "NOT DEFERRABLE")
        return " ".join(parts).encode()

    def dumped(self, statement: str, params: Mapping[str, Any]) -> _Dumped:
        query, names, formats = _parsed(statement)
        transformer = self._transformer
        values = transformer.dump_sequence([params[name] for name in names], formats)
        return query, values, transformer.types or (), transformer.formats

    def rows(self, result: PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def refusal(self, results: Iterable[PGresult]) -> psycopg.Error | None:
        """Return the first error among answers."""
        for each in results:
            if each.status == ExecStatus.FATAL_ERROR:
                error = psycopg.errors.error_from_result(each, self.raw.info.encoding)
                if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                    self._names.clear()  # somebody has deallocated them: each is prepared anew
                # One without a code is libpq's own: the connection is lost.
                return error if error.sqlstate else psycopg.OperationalError(str(error))
        return None


class Exchange:
    """Groups of statements in one round trip, each of which commits unless a transaction is open.

    The answers are those of the first. What fails of the others, which only notify, once it has
    committed, is no error.
    """

    def __init__(
        self, session: Session, groups: Sequence[Sequence[Statement]], prepare: bool
    ) -> None:
        self._session = session
        self._prepare = prepare
        self._new: list[tuple[bytes, tuple[int, ...]]] = []
        # For each group: of each of its answers, whether it is a statement's; and the answers.
        self._wanted: list[list[bool]] = []
        self._answers: list[list[PGresult]] = []
        self._ended = 0
        # All, before any is sent: a value that cannot be sent must not leave a part of them.
        dumped = [[session.dumped(*each) for each in group] for group in groups]
        begin = session.begin() if session.must_begin() else b""
        session.raw.pgconn.enter_pipeline_mode()
        try:
            for group in dumped:
                self._put(group, begin)
                begin = b""
        except psycopg.Error:
            self._leave()
            raise
        except BaseException:
            self._abandon()
            raise

    def _put(self, group: Sequence[_Dumped], begin: bytes) -> None:
        pgconn = self._session.raw.pgconn
        wanted: list[bool] = []
        if begin:
            pgconn.send_query_params(begin, None)
            wanted.append(False)
        for query, values, types, formats in group:
            if not self._prepare:
                pgconn.send_query_params(query, values, types, formats, _BINARY)
            else:
                name = self._session.name_of(query, types)
                if name is None:
                    name = self._session.named(query, types)
                    self._new.append((query, types))
                    pgconn.send_prepare(name, query, types)
                    wanted.append(False)
                pgconn.send_query_prepared(name, values, formats, _BINARY)
            wanted.append(True)
        pgconn.pipeline_sync()
        self._wanted.append(wanted)
        self._answers.append([])

    def send(self) -> None:
        """Have all of it on its way; answers come later."""
        try:
            self._session.raw.wait(generators.send(self._session.raw.pgconn))
        except BaseException:
            self._abandon()
            raise

    def answers(self) -> list[list[Row]]:
        """Wait for the rows of each statement of the first group."""
        return [self._session.rows(each) for each in self.results()]

    def results(self) -> list[PGresult]:
        """Wait for the answers to the statements of the first group; raises what failed."""
        failure: psycopg.Error | None = None
        try:
            with self._session.raw.lock:
                self._session.raw.wait(self._conversation())
        except psycopg.Error as error:
            failure = error
        except BaseException:
            self._abandon()
            raise
        self._leave()
        self._check(failure)
        first = zip(self._answers[0], self._wanted[0], strict=True)
        return [result for result, is_wanted in first if is_wanted]

    def _conversation(self) -> Generator[Any, Any, None]:
        pgconn = self._session.raw.pgconn
        yield from generators.send(pgconn)
        for answers in self._answers:
            while (result := (yield from generators.fetch(pgconn))) is None or (
                result.status != ExecStatus.PIPELINE_SYNC
            ):
                if result is not None:
                    answers.append(result)
                elif pgconn.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection is lost")
            self._ended += 1

    def _check(self, failure: psycopg.Error | None) -> None:
        refusal = self._session.refusal(self._answers[0])
        if refusal is not None:
            self._session.forget(self._new)
            done = sum(each.status in _DONE for each in self._answers[0])
            if done == len(self._wanted[0]) and isinstance(refusal, _ENDINGS):
                # Before the commit or behind it: no answer to the statements, whatever it says.
                raise psycopg.OperationalError("the session was ended at the commit") from refusal
            raise refusal
        error = self._session.refusal(chain.from_iterable(self._answers[1:])) or failure
        if error is not None:
            self._session.forget(self._new)
            if self._ended == 0 or not isinstance(error, _NOTIFY_FAILURES):
                raise error

    def _abandon(self) -> None:
        """Leave when it is interrupted; as Session.abandon() says."""
        self._session.forget(self._new)
        if self._answers and self._ended == len(self._answers):
            self._leave()
        else:
            self._session.cut()

    def _leave(self) -> None:
        """Leave the pipeline, having read what is unread: or the connection is of no use."""
        pgconn = self._session.raw.pgconn
        while pgconn.status == ConnStatus.OK and pgconn.pipeline_status != PipelineStatus.OFF:
            try:
                pgconn.exit_pipeline_mode()
            except psycopg.OperationalError:
                pgconn.get_result()


_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_sessions: Final[WeakKeyDictionary[BaseDatabaseWrapper, Session]] = WeakKeyDictionary()


def _session_of(connection: BaseDatabaseWrapper) -> Session:
    connection.close_if_health_check_failed()  # as Django's cursors do
    connection.ensure_connection()
    session = _sessions.get(connection)
    if session is None or session.raw is not connection.connection:
        session = _sessions[connection] = Session(connection.connection)
    return session


def _ready(connection: BaseDatabaseWrapper, alone: str = "") -> tuple[Session, bool]:
    """Return the session for what goes to libpq, past Django's cursors; guard what they guard.

    And whether to prepare; ``alone`` is the statement if there is just one.
    """
    session = _session_of(connection)
    prepare = prepares(connection) and (
        session.is_told or alone in ONE_PLAN or _tell_how_to_plan(connection, session)
    )
    connection.validate_no_broken_transaction()
    return session, prepare and session.raw.prepare_threshold is None


def plan_each_time(using: str) -> bool:
    """Have what is prepared on the connection planned each time; return whether it may be.

    Or once and for all, where the thread asked for it. Once per connection, a round trip. Not
    inside a transaction, whose rollback would undo it; so to be called before one that runs
    many statements on a new connection.
    """
    connection = connections[using]
    session = _session_of(connection)
    return prepares(connection) and (session.is_told or _tell_how_to_plan(connection, session))


def _tell_how_to_plan(connection: BaseDatabaseWrapper, session: Session) -> bool:
    # A pooler's session is others' too, and what is set in it stays.
    session.is_told = is_pooled(connection) or tell_how_to_plan(connection)
    return session.is_told


def prepares(connection: BaseDatabaseWrapper) -> bool:
    """Return whether statements are prepared on this alias (setting PREPARE)."""
    chosen = get_settings().PREPARE
    return not is_pooled(connection) if chosen is None else chosen


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False))
