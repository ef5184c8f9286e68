"""Two ways to PostgreSQL behind one face: ADBC, which reads Arrow, and psycopg."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import psycopg
import pyarrow as pa
from psycopg import sql as composed

from delayed_queue.spark.copying import END, HEADER

Row = tuple[Any, ...]
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


class PsycopgSession:
    """The same through psycopg, where there is no ADBC driver; and all that writes."""

    def __init__(self, dsn: str) -> None:
        with _translated(psycopg.Error):
            # Prepared statements do not outlive a transaction behind a transaction pooler.
            self._raw = psycopg.connect(dsn, prepare_threshold=None)

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
