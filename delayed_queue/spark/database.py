"""Connections to PostgreSQL: its address, statements, retries, and the check before a job."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import ProgrammingError
from psycopg import sql as composed
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from delayed_queue.db.sql import NOW, row_of, value_of
from delayed_queue.db.sql import Row as Row
from delayed_queue.exceptions import (
    InvalidConfiguration,
    ResourceUnavailable,
    SchemaMismatch,
    TooManyConnections,
    Unreachable,
)
from delayed_queue.messages import from_milliseconds
from delayed_queue.retries import Backoff, is_transient
from delayed_queue.spark.settings import TASKS, VARIABLE, tasks_of
from delayed_queue.spark.source.arrow import END, HEADER
from delayed_queue.spark.source.options import Options
from delayed_queue.spark.store.archiving import STEADY_TEXT, Template
from delayed_queue.spark.store.streaming import LOOK_AROUND, AroundRow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
_BACKOFF: Final = Backoff(retries=8)
_PLACEHOLDER: Final = re.compile(r"%\((\w+)\)[sb]|%%")
_NO_OPTIONS: Final = Options()

# The SQLSTATE for connections that break or fail, which have none.
_LOST: Final = "08006"


def bound(statement: str, params: Mapping[str, Any]) -> str:
    """Return the statement with its parameters as quoted literals.

    For cursors on the server and for ADBC: with parameters, ADBC holds all rows in memory.
    """

    def literal(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return composed.Literal(params[match[1]]).as_string(None)

    return _PLACEHOLDER.sub(literal, statement)


def shares(parts: int) -> list[float]:
    """Return the shares at which a whole is cut into equal parts."""
    return [number / parts for number in range(1, parts)]


def fetch(connection: Connection, statement: Any, params: Mapping[str, Any]) -> list[Row]:
    """Run the statement and return its rows."""
    cursor = connection.execute(statement, params)
    return cursor.fetchall() if cursor.description else []


def copy_rows(
    connection: Connection, table: tuple[str, ...], names: Iterable[str], rows: memoryview
) -> None:
    """Copy rows from ``encode_rows`` into the columns with these names."""
    statement = composed.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
        composed.Identifier(*table), composed.SQL(", ").join(map(composed.Identifier, names))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for piece in (HEADER, rows, END):
            copy.write(piece)


APPLICATION: Final = "delayed_queue_spark"
# Variables that libpq reads; any of them names a database.
_LIBPQ: Final = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE", "PGPORT", "PGUSER")
_DJANGO: Final = {
    "NAME": "dbname",
    "USER": "user",
    "PASSWORD": "password",
    "HOST": "host",
    "PORT": "port",
}


def resolve_dsn(options: Options) -> str:
    """Return the connection string of this process: option, function, environment, libpq."""
    if options.dsn is not None:
        return options.dsn
    if options.dsnFunction is not None:
        return _checked(_called(options.dsnFunction), options.dsnFunction)
    configured = os.environ.get(VARIABLE)
    if configured:
        return _checked(configured, VARIABLE)
    if any(os.environ.get(name) for name in _LIBPQ):
        return ""
    raise InvalidConfiguration(
        f"No database: set {VARIABLE} in the environment of the driver and of the executors "
        "(spark.executorEnv.…), libpq's PGHOST and PGDATABASE, or the option dsn or dsnFunction."
    )


def _called(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)()


def _checked(dsn: Any, source: str) -> str:
    try:
        conninfo_to_dict(dsn)
    except (ProgrammingError, TypeError, ValueError):
        # Without the cause: libpq quotes the text that it could not parse, maybe the password.
        raise InvalidConfiguration(f"{source} gives no connection string of libpq.") from None
    return str(dsn)


def dsn_from_django(database: Mapping[str, Any]) -> str:
    """Return libpq's connection string for an entry of Django's DATABASES, password included.

    For the environment of the Spark job, ``DELAYED_QUEUE_DSN``; never for an option.
    """
    names = {"sslmode", "sslrootcert", "sslcert", "sslkey", "service", "passfile", "options"}
    parts = {ours: database.get(theirs) for theirs, ours in _DJANGO.items()}
    parts |= {name: value for name, value in database.get("OPTIONS", {}).items() if name in names}
    return make_conninfo(**{name: value for name, value in parts.items() if value})


def connect(
    options: Options = _NO_OPTIONS, *, dsn: str | None = None, autocommit: bool = False
) -> Connection:
    """Open a connection; raises ResourceUnavailable."""
    address = resolve_dsn(options) if dsn is None else dsn
    try:
        return psycopg.connect(
            labelled(address), autocommit=autocommit,
            # Prepared statements do not outlive a transaction behind a transaction pooler.
            prepare_threshold=None, cursor_factory=psycopg.ClientCursor,
        )  # fmt: skip
    except psycopg.Error as error:
        raise unreachable(address, error) from None


def unreachable(dsn: str, error: Exception) -> Unreachable:
    return Unreachable(f"The database {_shown(dsn)} cannot be reached: {first_line(error)}")


def labelled(dsn: str) -> str:
    """Add the application name of these sessions for pg_stat_activity."""
    return make_conninfo(dsn, fallback_application_name=APPLICATION)


def _shown(dsn: str) -> str:
    """Name the database without its password."""
    parts = conninfo_to_dict(dsn)
    host, port = parts.get("host", "localhost"), parts.get("port", 5432)
    return f"{parts.get('dbname', '')!r} at {host}:{port}"


def first_line(error: Exception) -> str:
    """Return the first line of an error; the others may quote rows."""
    return str(error).strip().partition("\n")[0]


def steady(*, autocommit: bool = True) -> Connection:
    """Open a connection on which the text of rows does not depend on settings."""
    connection = connect(autocommit=autocommit)
    connection.execute(STEADY_TEXT.text)
    return connection


def database_now() -> datetime:
    """Return the database's clock, because this host's may be wrong."""
    with steady() as connection:
        return from_milliseconds(value_of(fetch(connection, NOW, {})))


def outlasting(work: Callable[[], T], say: Callable[[str], None] = lambda _: None) -> T:
    """Do the work; repeat it while the database is away, for half a minute in all.

    The work must be repeatable from its start. Raises its last error.
    """
    waits = iter(_BACKOFF.waits())
    while True:
        try:
            return work()
        except (psycopg.Error, Unreachable) as error:
            wait = next(waits, None)
            if wait is None or not _is_away(error):
                raise
            say(f"{first_line(error)}; trying again …")
            time.sleep(wait)


def _is_away(error: Exception) -> bool:
    if not isinstance(error, psycopg.Error):
        return True
    is_lost = error.sqlstate is None and isinstance(error, psycopg.OperationalError)
    return is_transient(_LOST if is_lost else error.sqlstate)


class Link:
    """One connection to the database of the options, opened when it is first needed."""

    def __init__(self, options: Options, *, dsn: str | None = None) -> None:
        self._options, self._dsn = options, dsn
        self._connection: Connection | None = None

    def repeat(self, what: str, work: Callable[[Connection], T]) -> T:
        """Do the work in a transaction; repeat it while the database is away.

        The work must be repeatable, because a commit without an answer may have happened. Raises
        ResourceUnavailable, whose message starts with ``what``.
        """
        return _named(what, lambda: outlasting(lambda: self._once(work)))

    def once(self, what: str, work: Callable[[Connection], T]) -> T:
        """Do the work in a transaction and commit it, or raise ResourceUnavailable."""
        return _named(what, lambda: self._once(work))

    def fetch(self, what: str, statement: str, params: Mapping[str, Any]) -> list[Row]:
        """Run the statement as ``repeat`` does; return its rows."""
        return self.repeat(what, lambda connection: fetch(connection, statement, params))

    def _once(self, work: Callable[[Connection], T]) -> T:
        try:
            self._connection = self._connection or connect(self._options, dsn=self._dsn)
            answer = work(self._connection)
            self._connection.commit()
        except BaseException:
            # Closing the connection undoes the transaction.
            self.close()
            raise
        return answer

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _named(what: str, work: Callable[[], T]) -> T:
    try:
        return work()
    except (psycopg.Error, Unreachable) as error:
        raise ResourceUnavailable(f"{what} failed: {first_line(error)}") from None


def look_around(connection: Connection, options: Options, *, leases: int = 0) -> int:
    """Return the database's clock, or raise errors that would stop the job later.

    Raises SchemaMismatch if tables are missing, TooManyConnections if the job's tasks and leases
    need more connections than the server has free.
    """
    around = row_of(AroundRow, fetch(connection, LOOK_AROUND, {}))
    if not around.has_queue or not around.has_ledger:
        missing = "delayed_queue" if not around.has_queue else "delayed_queue_offer_ledger"
        raise SchemaMismatch(
            f"The database has no table {missing!r}: run manage.py migrate delayed_queue."
        )
    tasks = options.connections or int(os.environ.get(TASKS, "1"))
    # This connection is counted as used, but is closed before the first task.
    most = around.most_connections
    free = most - around.used_connections + 1
    if tasks + leases > free:
        raise TooManyConnections(
            f"The job may open {tasks + leases} connections ({tasks} tasks, {leases} leases), "
            f"and {free} of {most} are free. Lower the option connections and the cores of the "
            "job (spark.cores.max), or raise max_connections."
        )
    return around.now


def check_database(spark: SparkSession, *, beside: int = 0) -> None:
    """Raise errors that would stop the job later: no database, no tables, no free connections.

    A job opens one connection per parallel task, and ``beside`` others.
    """
    options = Options(connections=tasks_of(spark))
    with closing(connect(options)) as connection:
        look_around(connection, options, leases=beside)


def filled(template: Template, **names: composed.Composable) -> composed.Composed:
    """Return the template with its names in place; the values stay parameters."""
    return composed.SQL(template.text).format(**names)
