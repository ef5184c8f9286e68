"""The way to PostgreSQL: where it is, two drivers behind one face, connections that come back."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import psycopg
import pyarrow as pa
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
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = str(8 * 1024 * 1024)

# Drivers have no SQLSTATE for it.
LOST: Final = "08006"


class DriverError(Exception):
    """A driver's error, with its SQLSTATE: LOST where the connection broke or was never made."""

    def __init__(self, message: str, sqlstate: str | None) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class Session(Protocol):
    """A connection in a transaction that ends with commit() or rollback()."""

    def fetch(self, statement: str, params: Mapping[str, Any]) -> list[Row]: ...

    def stream(
        self, statement: str, params: Mapping[str, Any], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]: ...

    def run(self, statement: str) -> None: ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def bound(statement: str, params: Mapping[str, Any]) -> str:
    """Return the statement with its parameters as quoted literals.

    ADBC streams only what has no parameters: with any, it holds the whole answer in memory.
    """

    def literal(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return composed.Literal(params[match[1]]).as_string(None)

    return _PLACEHOLDER.sub(literal, statement)


class AdbcSession:
    """Arrow out, by binary COPY."""

    def __init__(self, dsn: str) -> None:
        from adbc_driver_manager import Error
        from adbc_driver_postgresql import dbapi

        self._error = Error
        with _translated(Error):
            self._raw = dbapi.connect(dsn)

    def fetch(self, statement: str, params: Mapping[str, Any]) -> list[Row]:
        with _translated(self._error), self._raw.cursor() as cursor:
            # An answer of a few rows; and not every statement with RETURNING can be copied.
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(bound(statement, params))
            rows: list[Row] = cursor.fetchall()
            return rows

    def run(self, statement: str) -> None:
        with _translated(self._error), self._raw.cursor() as cursor:
            cursor.execute(statement)

    def stream(
        self, statement: str, params: Mapping[str, Any], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with _translated(self._error), self._raw.cursor() as cursor:
            cursor.adbc_statement.set_options(
                **{"adbc.postgresql.batch_size_hint_bytes": _BATCH_BYTES}
            )
            cursor.execute(bound(statement, params))
            yield from cursor.fetch_record_batch()

    def commit(self) -> None:
        with _translated(self._error):
            self._raw.commit()

    def rollback(self) -> None:
        with _translated(self._error):
            self._raw.rollback()

    def close(self) -> None:
        # What is left open is of a connection that broke, and closing is all that can be done.
        with suppress(self._error):
            self._raw.close()


def _opened(dsn: str, *, autocommit: bool = False) -> Connection:
    with _translated(psycopg.Error):
        # Prepared statements do not outlive a transaction behind a transaction pooler.
        return psycopg.connect(dsn, autocommit=autocommit, prepare_threshold=None)


class PsycopgSession:
    """The same through psycopg, where there is no ADBC driver; and all that writes."""

    def __init__(self, dsn: str) -> None:
        self._raw = _opened(dsn)

    def fetch(self, statement: str, params: Mapping[str, Any]) -> list[Row]:
        with _translated(psycopg.Error), self._raw.cursor() as cursor:
            cursor.execute(bound(statement, params))
            return cursor.fetchall() if cursor.description else []

    def run(self, statement: str) -> None:
        with _translated(psycopg.Error):
            self._raw.execute(statement)

    def stream(
        self, statement: str, params: Mapping[str, Any], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        with _translated(psycopg.Error), self._raw.cursor("delayed_queue", binary=True) as cursor:
            cursor.execute(bound(statement, params))
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield _batch(rows, schema)

    def copy(self, table: tuple[str, ...], names: Iterable[str], rows: memoryview) -> None:
        """Add rows as ``encode_rows`` makes them of columns with these names, in this order."""
        statement = composed.SQL("COPY {} ({}) FROM STDIN (FORMAT BINARY)").format(
            composed.Identifier(*table), composed.SQL(", ").join(map(composed.Identifier, names))
        )
        with (
            _translated(psycopg.Error),
            self._raw.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for piece in (HEADER, rows, END):
                copy.write(piece)

    def commit(self) -> None:
        with _translated(psycopg.Error):
            self._raw.commit()

    def rollback(self) -> None:
        with _translated(psycopg.Error):
            self._raw.rollback()

    def close(self) -> None:
        self._raw.close()


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [
        pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _translated:  # used as a function
    """Raise DriverError for the driver's own, without what the driver was given."""

    def __init__(self, error: type[Exception]) -> None:
        self._error = error

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, self._error):
            raise DriverError(_first_line(error), _sqlstate(error)) from None


def _sqlstate(error: BaseException) -> str | None:
    sqlstate: str | None = getattr(error, "sqlstate", None)
    is_lost = sqlstate is None and type(error).__name__ == "OperationalError"
    return LOST if is_lost else sqlstate


def _first_line(error: BaseException) -> str:
    """Return what went wrong without the lines that follow: they quote rows, as in COPY's."""
    return str(error).strip().partition("\n")[0]


APPLICATION: Final = "delayed_queue_spark"
# What libpq reads by itself: any of these says where the database is.
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
        # Without the cause: libpq quotes what it could not read, and that may be the password.
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


def connect(options: Options, *, dsn: str | None = None, reads_rows: bool = False) -> Session:
    """Open a connection, to read rows by the driver asked for; raises ResourceUnavailable.

    ``auto`` is ADBC where it is installed, else psycopg. What reads no rows is psycopg's: ADBC
    reads the whole catalog of types when it connects, which takes ten times as long.
    """
    address = resolve_dsn(options) if dsn is None else dsn
    try:
        return _driver(options, reads_rows)(_labelled(address))
    except DriverError as error:
        raise _unreachable(address, error) from None


def _unreachable(dsn: str, error: DriverError) -> ResourceUnavailable:
    return ResourceUnavailable(f"The database {_shown(dsn)} cannot be reached: {error}")


def _labelled(dsn: str) -> str:
    """Add the name by which an operator finds these sessions in pg_stat_activity."""
    return make_conninfo(dsn, fallback_application_name=APPLICATION)


def _driver(options: Options, reads_rows: bool) -> Callable[[str], Session]:
    name = options.driver
    if not reads_rows or name == "psycopg" or (name == "auto" and not _has_adbc()):
        return PsycopgSession
    return AdbcSession


def _has_adbc() -> bool:
    try:
        import_module("adbc_driver_postgresql.dbapi")
    except ImportError:
        return False
    return True


def _shown(dsn: str) -> str:
    """Name the database without its password."""
    parts = conninfo_to_dict(dsn)
    host, port = parts.get("host", "localhost"), parts.get("port", 5432)
    return f"{parts.get('dbname', '')!r} at {host}:{port}"


def steady(*, autocommit: bool = True) -> Connection:
    """Open a connection of psycopg's own, on which the text of a row depends on no setting.

    Raises ResourceUnavailable.
    """
    dsn = resolve_dsn(Options())
    try:
        connection = _opened(_labelled(dsn), autocommit=autocommit)
    except DriverError as error:
        raise _unreachable(dsn, error) from None
    connection.execute(STEADY_TEXT.text)
    return connection


def database_now() -> datetime:
    """Return the database's instant: the clock of this host may be wrong."""
    with steady() as connection:
        return from_milliseconds(value_of(fetch(connection, NOW, {})))


def _repeated(
    work: Callable[[], T],
    errors: type[Exception] | tuple[type[Exception], ...],
    is_away: Callable[[Any], bool],
    say: Callable[[str], None] = lambda _: None,
) -> T:
    """Do the work, again after these errors while the database is away: half a minute in all."""
    waits = iter(_BACKOFF.waits())
    while True:
        try:
            return work()
        except errors as error:
            wait = next(waits, None)
            if wait is None or not is_away(error):
                raise
            say(f"{_first_line(error)}; trying again …")
            time.sleep(wait)


def outlasting(work: Callable[[], T], say: Callable[[str], None] = lambda _: None) -> T:
    """Do the work, anew while the database is away.

    The work must bear being begun anew wherever it broke off. Raises what it raised last.
    """
    return _repeated(work, (psycopg.OperationalError, ResourceUnavailable), _is_away, say)


def _is_away(error: Exception) -> bool:
    # A connection that broke while nobody answered has no SQLSTATE.
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is None or is_transient(state)


class Link:
    """One connection to the database of the options, opened when it is first needed."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._session: PsycopgSession | None = None

    def repeat(self, what: str, work: Callable[[PsycopgSession], T]) -> T:
        """Do the work in a transaction and commit it, again while that may help.

        The work must bear being done twice: a commit that was not answered may have happened.
        Raises ResourceUnavailable, beginning with ``what``.
        """
        return self._named(
            what,
            lambda: _repeated(
                lambda: self._once(work), DriverError, lambda error: is_transient(error.sqlstate)
            ),
        )

    def once(self, what: str, work: Callable[[PsycopgSession], T]) -> T:
        """Do the work in a transaction and commit it, or raise ResourceUnavailable."""
        return self._named(what, lambda: self._once(work))

    def _named(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except DriverError as error:
            raise ResourceUnavailable(f"{what} failed: {error}") from None

    def _once(self, work: Callable[[PsycopgSession], T]) -> T:
        try:
            self._session = self._session or PsycopgSession(_labelled(resolve_dsn(self._options)))
            answer = work(self._session)
            self._session.commit()
        except BaseException:
            # Whatever it was: what is half done is undone with the connection.
            self.close()
            raise
        return answer

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def look_around(session: Session, options: Options, *, leases: int = 0) -> int:
    """Return the database's clock, or raise what would stop the job half-way.

    SchemaMismatch where the tables are missing; TooManyConnections where its tasks, and the
    connections of its leases, are more than the server has left.
    """
    around = row_of(AroundRow, session.fetch(LOOK_AROUND, {}))
    if not around.has_queue or not around.has_ledger:
        missing = "delayed_queue" if not around.has_queue else "delayed_queue_offer_ledger"
        raise SchemaMismatch(
            f"The database has no table {missing!r}: run manage.py migrate delayed_queue."
        )
    tasks = options.connections or int(os.environ.get(TASKS, "1"))
    # Ours is among those in use, and ends before the first task begins.
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
    """Raise what would stop the job after hours: no database, no tables, or no room.

    A job opens one connection for each task that runs at a time, and ``beside`` them others.
    """
    options = Options(connections=tasks_of(spark))
    with closing(connect(options)) as session:
        look_around(session, options, leases=beside)


def filled(template: Template, **names: composed.Composable) -> composed.Composed:
    """Return the template with its names in place; the values stay parameters."""
    return composed.SQL(template.text).format(**names)


def fetch(
    connection: Connection, statement: Any, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    return connection.execute(statement, params).fetchall()
