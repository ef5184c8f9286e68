"""Where the database is, and how to reach it without the password leaving the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.spark.drivers import AdbcSession, DriverError, PsycopgSession, Session
from delayed_queue.spark.options import Options

VARIABLE: Final = "DELAYED_QUEUE_DSN"
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
        raise ResourceUnavailable(
            f"The database {_shown(address)} cannot be reached: {error}"
        ) from None


def reconnect(options: Options) -> PsycopgSession:
    """Open a connection as ``connect`` does, for who tries again: raises DriverError."""
    return PsycopgSession(_labelled(resolve_dsn(options)))


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
