"""The columns of reads and writes: their types, and clear errors for wrong ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from delayed_queue.exceptions import InvalidConfiguration, suggest

TEXT_CODECS: Final = ("|json", "|text")

# Spark's type and Arrow's type of the rows from PostgreSQL, in display order.
_READ: Final[Mapping[str, tuple[DataType, str]]] = {
    "key": (StringType(), "string"),
    "kind": (StringType(), "string"),
    "queue": (StringType(), "string"),
    "payload": (BinaryType(), "binary"),
    "scheduled_at": (TimestampType(), "int64"),
    "scheduled_at_initially": (TimestampType(), "int64"),
    "created_at": (TimestampType(), "int64"),
    "state": (StringType(), "string"),
    "attempts": (IntegerType(), "int32"),
    "lock_uuid": (StringType(), "string"),
    "headers": (StringType(), "string"),
    "due_at": (TimestampType(), "int64"),
    "group": (StringType(), "string"),
    "expires_at": (TimestampType(), "int64"),
    "id": (LongType(), "int64"),
}
# The queue is derived from the kind.
_SOURCES: Final = {"queue": "kind"}

_WRITTEN: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (StringType,),
    "payload": (StringType, BinaryType, StructType, ArrayType, MapType),
    "schedule_at": (TimestampType,),
    "delay": (DayTimeIntervalType, LongType, IntegerType),
    "headers": (StringType, MapType),
    "group": (StringType,),
    "expires_at": (TimestampType,),
    "queue": (StringType,),
    "kind": (StringType,),
}
_REQUIRED: Final = ("key", "payload")
_WHOSE: Final = ("queue", "kind")


def read_schema(kind: str | None) -> StructType:
    """Return the default schema of a read; the payload is a text if the codec is."""
    is_text = kind is not None and kind.endswith(TEXT_CODECS)
    types = {name: each for name, (each, _) in _READ.items()}
    types["payload"] = StringType() if is_text else BinaryType()
    return StructType([StructField(name, each, True) for name, each in types.items()])


def check_read(schema: StructType) -> None:
    """Refuse a schema with unknown columns or wrong types."""
    for field in schema.fields:
        if field.name not in _READ:
            raise InvalidConfiguration(_no_column(field.name, _READ))
        allowed = [_READ[field.name][0]]
        if field.name == "payload":
            allowed.append(StringType())
        if field.dataType not in allowed:
            raise InvalidConfiguration(
                _wrong_type(field, [each.simpleString() for each in allowed])
            )


def source_columns(names: Iterable[str], *, is_kind_known: bool = False) -> list[str]:
    """Return the columns to select, each once, in order; at least one."""
    columns = list(dict.fromkeys(_SOURCES.get(name, name) for name in names))
    if is_kind_known and columns != ["kind"]:
        return [each for each in columns if each != "kind"]
    return columns


def source_schema(columns: Iterable[str]) -> pa.Schema:
    """Return the Arrow types of the selected columns."""
    return pa.schema([(name, pa.type_for_alias(_READ[name][1])) for name in columns])


def check_written(schema: StructType, kind: str | None = None) -> None:
    """Refuse rows that cannot be offers, by the first column that is missing or wrong.

    ``kind`` is the kind of all rows; without it a column has the kind of each row.
    """
    named = [f"the column {name!r}" for name in _WHOSE if name in schema.fieldNames()]
    named += [] if kind is None else ["an option"]
    if len(named) > 1:
        raise InvalidConfiguration(
            f"Name the queue of the rows only once: there are {' and '.join(named)}."
        )
    for field in schema.fields:
        if field.name not in _WRITTEN:
            raise InvalidConfiguration(_no_column(field.name, _WRITTEN))
        if not isinstance(field.dataType, _WRITTEN[field.name]) or not _fits(field):
            names = [each.typeName() for each in _WRITTEN[field.name]]
            raise InvalidConfiguration(_wrong_type(field, names, _cast_of(field)))
    for name in _REQUIRED:
        if name not in schema.fieldNames():
            raise InvalidConfiguration(
                f"An offer needs the column {name!r}; there are {', '.join(schema.fieldNames())}."
            )


def _fits(field: StructField) -> bool:
    """Return False for headers that are a map of other types than texts."""
    kind = field.dataType
    if field.name == "payload" or not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _no_column(name: str, known: Iterable[str]) -> str:
    close = suggest(name, known)
    hint = f"did you mean {close!r}?" if close else f"there are {', '.join(known)}."
    return f"There is no column {name!r}: {hint}"


def _wrong_type(field: StructField, types: Iterable[str], cast: str = "") -> str:
    return (
        f"The column {field.name!r} is {field.dataType.simpleString()}; it must be "
        f"{' or '.join(types)}{cast and f': {cast}'}."
    )


_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)


def _cast_of(field: StructField) -> str:
    """Return the Spark expression that casts the column for an offer."""
    column, kind = field.name, field.dataType
    if column in ("schedule_at", "expires_at"):
        if isinstance(kind, _WHOLE):
            return f"timestamp_millis({column})"
        return f"CAST({column} AS TIMESTAMP), which reads it in the session's time zone"
    if column == "delay":
        return f"CAST({column} AS INTERVAL DAY TO SECOND)"
    if isinstance(kind, VariantType | StructType | ArrayType | MapType):
        return f"to_json({column})"
    return f"CAST({column} AS STRING)"
