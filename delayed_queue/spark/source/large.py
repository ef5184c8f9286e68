"""Large reads: by ADBC where it is installed, else by psycopg.

ADBC converts binary COPY to Arrow in C, but reads the whole catalog of types when it connects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.util import find_spec
from typing import Any, Final

import psycopg
import pyarrow as pa

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import (
    bound,
    connect,
    first_line,
    labelled,
    resolve_dsn,
    stream,
    unreachable,
)
from delayed_queue.spark.source.options import Options

# Rows above which ADBC is faster, including its connection.
_LARGE: Final = 20_000
_BATCH_BYTES: Final = str(8 * 1024 * 1024)


def read_large(
    options: Options, before: Sequence[str], statement: str, params: Mapping[str, Any],
    schema: pa.Schema, *, rows: int,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield the rows of the statement, in one transaction after the statements ``before``."""
    is_adbc = options.driver == "adbc" or (
        options.driver == "auto" and rows >= _LARGE and find_spec("adbc_driver_postgresql")
    )
    if is_adbc:
        yield from _by_adbc(options, before, bound(statement, params))
        return
    with closing(connect(options)) as connection:
        try:
            for each in before:
                connection.execute(each)
            yield from stream(connection, statement, params, schema)
        except psycopg.Error as error:
            raise ResourceUnavailable(f"The read failed: {first_line(error)}") from None


def _by_adbc(options: Options, before: Sequence[str], query: str) -> Iterator[pa.RecordBatch]:
    # Not the module dbapi, which imports pandas: a second for each process.
    from adbc_driver_manager import AdbcConnection, AdbcStatement, Error
    from adbc_driver_postgresql import connect as adbc_connect

    address = resolve_dsn(options)
    with ExitStack() as stack:
        try:
            database = stack.enter_context(adbc_connect(labelled(address)))
            connection = stack.enter_context(AdbcConnection(database))
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
