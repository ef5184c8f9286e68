"""Large reads: by ADBC where it is installed, else by psycopg.

ADBC converts binary COPY to Arrow in C.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import connect, first_line, labelled, resolve_dsn, unreachable
from delayed_queue.spark.source.options import Options

if TYPE_CHECKING:
    from adbc_driver_manager import AdbcDatabase

# Rows of a batch by psycopg, and bytes of one by ADBC: some megabytes in memory, and Spark works on
# one while the next is read.
_BATCH_ROWS: Final = 10_000
_BATCH_BYTES: Final = str(2 * 1024 * 1024)


def read_large(
    options: Options, before: Sequence[str], query: str, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the query, in one transaction after the statements ``before``."""
    is_there = options.driver != "psycopg" and find_spec("adbc_driver_postgresql")
    if is_there or options.driver == "adbc":
        yield from _by_adbc(options, before, query)
        return
    with closing(connect(options)) as connection:
        try:
            for each in before:
                connection.execute(each)
            with connection.cursor("delayed_queue", binary=True) as cursor:
                cursor.execute(query)
                while rows := cursor.fetchmany(_BATCH_ROWS):
                    yield _batch_of(rows, schema)
        except psycopg.Error as error:
            raise ResourceUnavailable(f"The read failed: {first_line(error)}") from None


def _batch_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(zip(*rows, strict=True), schema.types, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(*each) for each in columns], schema=schema)


@cache
def _database(address: str) -> AdbcDatabase:
    """Return ADBC's database, which reads the catalog of types once, and keeps no connection."""
    # Not the module dbapi, which imports pandas: a second for each process.
    from adbc_driver_postgresql import connect as adbc_connect

    database: AdbcDatabase = adbc_connect(labelled(address))
    return database


def _by_adbc(options: Options, before: Sequence[str], query: str) -> Iterator[pa.RecordBatch]:
    from adbc_driver_manager import AdbcConnection, AdbcStatement, Error

    address = resolve_dsn(options)
    with ExitStack() as stack:
        try:
            connection = stack.enter_context(AdbcConnection(_database(address)))
        except Error as error:
            raise unreachable(address, error) from None
        try:
            connection.set_autocommit(False)
            statement = stack.enter_context(AdbcStatement(connection))
            for each in before:
                statement.set_sql_query(each)
                statement.execute_update()
            statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": _BATCH_BYTES})
            statement.set_sql_query(query)
            reader = pa.RecordBatchReader.from_stream(statement.execute_query()[0])
            # Closed before its statement, also by a task that stops early.
            yield from stack.enter_context(reader)
        except (Error, pa.ArrowException, OSError) as error:
            raise ResourceUnavailable(f"The read failed: {first_line(error)}") from None
