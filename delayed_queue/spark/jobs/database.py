"""The database, seen from the driver and from executors, for what is not the queue's source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql as composed

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.connecting import connect as reach
from delayed_queue.spark.connecting import resolve_dsn
from delayed_queue.spark.options import Options
from delayed_queue.spark.room import look_around
from delayed_queue.sql.archiving import STEADY_TEXT, Template

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(*, autocommit: bool = True) -> Connection:
    """Open a connection whose texts of rows depend on no setting; the password stays unsaid."""
    try:
        connection = psycopg.connect(resolve_dsn(Options()), autocommit=autocommit)
    except psycopg.Error as error:
        first = str(error).strip().partition("\n")[0]
        raise ResourceUnavailable(f"The database cannot be reached: {first}") from None
    connection.execute(STEADY_TEXT.text)
    return connection


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
