"""Statements over libpq, on connections that are plainly Django's own.

psycopg's cursors and pipelines take longer than most statements of the package. Where nothing
stands between Django and the server, libpq's functions send them; everywhere else Django's cursors.
"""

from __future__ import annotations

import logging
import math
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from itertools import count
from operator import attrgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import psycopg
from django.db.backends.postgresql.base import Cursor, ServerBindingCursor
from django.db.backends.signals import connection_created
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, Format, TransactionStatus

from delayed_queue.conf import get_settings
from delayed_queue.db.own import is_in_pool, is_own
from delayed_queue.db.sql import KEPT_BEHIND, ONE_PLAN, Row

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from psycopg.pq.abc import PGresult

Statement = tuple[str, Mapping[str, Any]]
# The identity of a prepared statement: its text and the types of its values.
Prepared = tuple[bytes, tuple[int, ...]]
# A statement for libpq: text, values, types, formats, and the maximum of executions by one name.
Dumped = tuple[bytes, Sequence[Any], tuple[int, ...], Sequence[Format] | None, float]

# Prepared statements per server session, as in psycopg; the least recently used is deallocated.
MAX_PREPARED: Final = 100
# Executions of a prepared statement after which PostgreSQL may keep its plan.
_CUSTOM_PLANS: Final = 5
BINARY: Final = Format.BINARY
# Maximum wait for the server to accept the cancellation of a statement, in seconds.
_CANCEL_SECONDS: Final = 2.0
_PLACE: Final = re.compile(r"%(?:%|\((\w+)\)([sb]))")
_FORMATS: Final = {"s": PyFormat.AUTO, "b": PyFormat.BINARY}

# Methods of Django's wrapper that tenants, pools and instruments replace.
_METHODS: Final = ("cursor", "_cursor", "create_cursor", "chunked_cursor", "get_new_connection")
_CURSORS: Final[tuple[type[Any], ...]] = (Cursor, ServerBindingCursor)
# Undocumented names of psycopg that a session needs.
_INTERNALS: Final = (
    "generators.execute", "generators.fetch", "generators.send", "errors.error_from_result",
    "adapt.Transformer.dump_sequence", "adapt.Transformer.load_rows",
    "adapt.Transformer.set_pgresult", "Connection.wait", "Connection.cancel_safe",
)  # fmt: skip


# True to keep the plans of all statements, False for those of ONE_PLAN, None to prepare nothing.
Kept = bool | None


@lru_cache(maxsize=512)
def _parsed(statement: str) -> tuple[bytes, tuple[str, ...], list[PyFormat]]:
    """Return the statement with numbered parameters, and their names and formats."""
    places: dict[tuple[str, str], int] = {}

    def place(found: re.Match[str]) -> str:
        if found[1] is None:
            return "%"
        return f"${places.setdefault((found[1], found[2]), len(places) + 1)}"

    query = _PLACE.sub(place, statement).encode()
    return query, tuple(name for name, _ in places), [_FORMATS[each] for _, each in places]


class Session:
    """A server session: what is prepared in it, and how statements are sent to it."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self.raw = raw
        # True if the planner is set to keep plans, so that every statement can be prepared.
        self.keeps_plans = False
        # The name of each prepared statement, and its executions so far.
        self._names: OrderedDict[Prepared, tuple[bytes, int]] = OrderedDict()
        # Unique, because a pooler may give a server session to another client.
        self._prefix = f"delayed_queue_{secrets.token_hex(4)}_"
        self._numbers = count()
        self._transformer = Transformer(raw)

    def kept_among(self, steps: Sequence[Statement], is_prepared: bool) -> Kept:
        """Return whether plans may be kept when these statements are sent together."""
        if not is_prepared or self.raw.prepare_threshold is not None:  # psycopg prepares by itself
            return None
        return self.keeps_plans or any(statement in KEPT_BEHIND for statement, _ in steps)

    def dumped(self, statement: str, params: Mapping[str, Any], kept: Kept) -> Dumped:
        query, names, formats = _parsed(statement)
        transformer = self._transformer
        values = transformer.dump_sequence([params[name] for name in names], formats)
        types, formats_sent = transformer.types or (), transformer.formats
        keeps = kept or statement in ONE_PLAN
        most = 0 if kept is None else math.inf if keeps else _CUSTOM_PLANS
        return query, values, types, formats_sent, most

    def result(self, dumped: Dumped, name: bytes) -> PGresult:
        """Send a single statement, by its name if it is prepared, and return its result."""
        query, values, types, formats, _ = dumped
        pgconn = self.raw.pgconn
        try:
            with self.raw.lock:
                if name:
                    pgconn.send_query_prepared(name, values, formats, BINARY)
                else:
                    pgconn.send_query_params(query, values, types, formats, BINARY)
                results: list[PGresult] = self.raw.wait(psycopg.generators.execute(pgconn))
        except psycopg.Error:
            raise
        except BaseException:
            self._abandon()
            raise
        if error := self.refusal(results):
            raise error
        return results[0]

    def rows(self, result: PGresult) -> list[Row]:
        self._transformer.set_pgresult(result)
        return self._transformer.load_rows(0, result.ntuples, tuple)

    def refusal(self, results: Iterable[PGresult]) -> psycopg.Error | None:
        """Return the first error among results."""
        for each in results:
            if each.status == ExecStatus.FATAL_ERROR:
                error = psycopg.errors.error_from_result(each, self.raw.info.encoding)
                if isinstance(error, psycopg.errors.InvalidSqlStatementName):
                    self._names.clear()  # deallocated by other code
                # libpq's own error has no code: the connection is lost.
                return error if error.sqlstate else psycopg.OperationalError(str(error))
        return None

    # Names of prepared statements

    def name_of(self, statement: Prepared, most: float) -> bytes | None:
        """Return the name to execute a statement by; None to prepare it first."""
        name, executions = self._names.get(statement, (None, 0))
        if name is None or executions >= most:
            return None
        self._names[statement] = name, executions + 1
        self._names.move_to_end(statement)
        return name

    def add_name(self, statement: Prepared) -> tuple[bytes, bytes | None]:
        """Return a new name, and one to deallocate: the statement's last, or that of another."""
        evicted, _ = self._names.pop(statement, (None, 0))
        if evicted is None and len(self._names) >= MAX_PREPARED:
            evicted, _ = self._names.popitem(last=False)[1]
        name = f"{self._prefix}{next(self._numbers)}".encode()
        self._names[statement] = name, 1
        return name, evicted

    def forget(self, statements: Iterable[Prepared]) -> None:
        """Prepare these again at their next use: the server may not have them."""
        for each in statements:
            self._names.pop(each, None)

    # Transactions and interruptions

    def must_begin(self) -> bool:
        """True if a BEGIN is due before the next statement."""
        raw = self.raw
        return not raw.autocommit and raw.pgconn.transaction_status == TransactionStatus.IDLE

    def begin(self) -> bytes:
        """Return the BEGIN that psycopg would send."""
        raw, parts = self.raw, ["BEGIN"]
        if raw.isolation_level is not None:
            level = psycopg.IsolationLevel(raw.isolation_level)
            parts.append(f"ISOLATION LEVEL {level.name.replace('_', ' ')}")
        if raw.read_only is not None:
            parts.append("READ ONLY" if raw.read_only else "READ WRITE")
        if raw.deferrable is not None:
            parts.append("DEFERRABLE" if raw.deferrable else "NOT DEFERRABLE")
        return " ".join(parts).encode()

    def _abandon(self) -> None:
        """Close the connection after an interruption if a reply is still to come.

        psycopg cancels the statement and reads its reply at Ctrl-C, but not at the exception of
        another signal handler.
        """
        if self.raw.pgconn.transaction_status == TransactionStatus.ACTIVE:
            self.cut()

    def cut(self) -> None:
        """Cancel the running statement, which may wait for a lock, and close the connection."""
        try:
            cancel(self.raw)
        finally:
            self.raw.close()


def cancel(raw: psycopg.Connection[Any]) -> None:
    """Cancel the running statement, so that it does not take effect later."""
    with suppress(psycopg.Error):
        raw.cancel_safe(timeout=_CANCEL_SECONDS)


# Which connections have a session

_sessions: Final[WeakKeyDictionary[psycopg.Connection[Any], Session]] = WeakKeyDictionary()


def session_of(connection: BaseDatabaseWrapper) -> Session | None:
    """Return the session of a connection; None to use Django's cursors.

    Connects if necessary. Raises what Django's cursors would in a broken transaction.
    """
    if not _is_plain(connection):
        return None
    connection.close_if_health_check_failed()  # as Django's cursors do
    connection.ensure_connection()
    raw = connection.connection
    if type(raw) is not psycopg.Connection or raw.cursor_factory not in _CURSORS:
        return None
    session = _sessions.get(raw)
    if session is None:
        if not _knows_psycopg():
            return None
        session = _sessions[raw] = Session(raw)
    connection.validate_no_broken_transaction()
    return session


def _is_plain(connection: BaseDatabaseWrapper) -> bool:
    """True if nothing stands between Django's connection and the server."""
    if connection.execute_wrappers or connection.queries_logged or is_in_pool(connection):
        return False
    replaced, kind = vars(connection), type(connection)
    return kind.__module__.startswith("django.") and all(
        name not in replaced and _is_djangos(getattr(kind, name)) for name in _METHODS
    )


def _is_djangos(method: Any) -> bool:
    # Not by its __module__, which functools.wraps copies.
    return type(method) is FunctionType and method.__globals__["__name__"].startswith("django.")


def _knows_psycopg() -> bool:
    if not (missing := _missing_internals()):
        return True
    _log_once(missing)
    return False


def _missing_internals() -> tuple[str, ...]:
    def is_missing(name: str) -> bool:
        try:
            attrgetter(name)(psycopg)
        except AttributeError:
            return True
        return False

    missing = tuple(name for name in _INTERNALS if is_missing(name))
    return missing if psycopg.Pipeline.is_supported() else (*missing, "pq.pipelines")


@cache
def _log_once(missing: tuple[str, ...]) -> None:
    fields = {"version": psycopg.__version__.split()[0], "missing": ",".join(missing)}
    # The format of delayed_queue.logs, which is above this layer.
    extra = {"event": "psycopg_differs", "fields": fields}
    logger = logging.getLogger("delayed_queue")
    logger.warning("event=psycopg_differs version=%s missing=%s", *fields.values(), extra=extra)


def prepares(connection: BaseDatabaseWrapper) -> bool:
    """True if statements are prepared on this alias (setting PREPARE)."""
    chosen = get_settings().PREPARE
    return not is_pooled(connection) if chosen is None else chosen


def is_pooled(connection: BaseDatabaseWrapper) -> bool:
    """True if a pooler in transaction mode is declared."""
    return bool(connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False))


# The planner of a worker's own connections

# Settings of a connection that runs only statements of the package. Even a plan that is made on an
# empty table uses the index, so it can be kept: planning takes a third of a single claim. Before
# PostgreSQL 18 a disabled node counts as expensive, so JIT would compile each statement.
_PLANNER_SETTINGS: Final = """
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET jit = off;
SET default_transaction_isolation = 'read committed'
"""


def _keep_plans(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """Set the planner on a new connection of our own."""
    if not is_own(connection) or is_pooled(connection) or not prepares(connection):
        return
    with connection.wrap_database_errors:
        try:
            if session := session_of(connection):
                session.raw.execute(_PLANNER_SETTINGS)
                session.keeps_plans = True
        finally:
            if connection.connection.closed:  # an atomic block does not replace it
                connection.close()


connection_created.connect(_keep_plans, dispatch_uid="delayed_queue.session")
