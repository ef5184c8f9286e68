"""The database, seen from the driver and from executors, for what is not the queue's source."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import sql as composed

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.retries import Backoff, is_transient
from delayed_queue.spark.database import connect as reach
from delayed_queue.spark.database import look_around, resolve_dsn
from delayed_queue.spark.options import Options
from delayed_queue.spark.store.archiving import STEADY_TEXT, Template

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connection = psycopg.Connection[tuple[Any, ...]]
T = TypeVar("T")

_BACKOFF: Final = Backoff(retries=8)


def connect(*, autocommit: bool = True) -> Connection:
    """Open a connection whose texts of rows depend on no setting; the password stays unsaid."""
    try:
        connection = psycopg.connect(resolve_dsn(Options()), autocommit=autocommit)
    except psycopg.Error as error:
        said = f"The database cannot be reached: {_first_line(error)}"
        raise ResourceUnavailable(said) from None
    connection.execute(STEADY_TEXT.text)
    return connection


def outlasting(work: Callable[[], T], say: Callable[[str], None] = lambda _: None) -> T:
    """Do the work, anew while the database is away, for about half a minute in all.

    The work must bear being begun anew wherever it broke off. Raises what it raised last.
    """
    waits = iter(_BACKOFF.waits())
    while True:
        try:
            return work()
        except (psycopg.OperationalError, ResourceUnavailable) as error:
            wait = next(waits, None)
            if wait is None or not _is_away(error):
                raise
            say(f"{_first_line(error)}; trying again …")
            time.sleep(wait)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _is_away(error: Exception) -> bool:
    # A connection that broke while nobody answered has no SQLSTATE.
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    return state is None or is_transient(state)


def check_database(spark: SparkSession, *, beside: int = 0) -> None:
    """Raise what would stop the job after hours: no database, no tables, or no room.

    A job opens one connection for each task that runs at a time, and ``beside`` them others.
    """
    options = Options(connections=spark.sparkContext.defaultParallelism)
    session = reach(options)
    try:
        look_around(session, options, leases=beside)
    finally:
        session.close()


def filled(template: Template, **names: composed.Composable) -> composed.Composed:
    """Return the template with its names in place; the values stay parameters."""
    return composed.SQL(template.text).format(**names)


def fetch(
    connection: Connection, statement: Any, params: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    return connection.execute(statement, params).fetchall()
