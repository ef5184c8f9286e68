"""The column types of Parquet that an import can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.records import Rules
from delayed_queue.spark.source.schema import WHOLE, cast_of, wrong_type

# The types that each field accepts.
_IMPORTED: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (StringType, *WHOLE),
    "group": (StringType, *WHOLE),
    "queue": (StringType,),
    "schedule_at": (TimestampType, TimestampNTZType, DateType, StringType, *WHOLE),
    "delay": (DayTimeIntervalType, StringType, FloatType, DoubleType, *WHOLE),
    "headers": (StringType, BinaryType, StructType, MapType),
}
_PAYLOADS: Final = {"text": (StringType,), "bytes": (BinaryType,)}
_IN_JSON: Final = (
    StringType, BooleanType, *WHOLE, FloatType, DoubleType, DecimalType, DateType, TimestampType,
    TimestampNTZType, NullType,
)  # fmt: skip


def check_imported(schema: StructType, rules: Rules) -> None:
    """Refuse columns of a type that makes every record invalid, before any is read."""
    column_of = rules.column_of
    name_of = {column: name for name, column in column_of.items()}
    has_payload = column_of["payload"] in schema.fieldNames()
    for field in schema.fields:
        name = name_of.get(field.name, "")
        if name in _IMPORTED:
            _check_type(name, field, _IMPORTED[name])
            _check_zone(name, field, rules)
        elif name == "payload" and rules.codec in _PAYLOADS:
            _check_type(name, field, _PAYLOADS[rules.codec])
        elif name == "payload" or not has_payload:
            _check_json(field, may_be_binary=name == "payload")


def _check_type(name: str, field: StructField, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(field.dataType, (*allowed, NullType)):
        is_binary = allowed == (BinaryType,)
        cast = f"CAST({field.name} AS BINARY)" if is_binary else cast_of(name, field)
        raise InvalidConfiguration(wrong_type(field, [e.typeName() for e in allowed], cast))


def _check_zone(name: str, field: StructField, rules: Rules) -> None:
    is_local = isinstance(field.dataType, TimestampNTZType | DateType)
    if name == "schedule_at" and is_local and rules.time_zone is None:
        raise InvalidConfiguration(
            f"The column {field.name!r} is {field.dataType.simpleString()}, which names no time "
            "zone: pass --time-zone, as in Europe/Berlin."
        )


def _check_json(field: StructField, *, may_be_binary: bool) -> None:
    """Refuse a column that JSON cannot represent; bytes may contain JSON."""
    wrong = _not_json(field.dataType)
    if wrong is None or (may_be_binary and wrong is field.dataType and _is_binary(wrong)):
        return
    cast = f"base64({field.name})" if _is_binary(field.dataType) else cast_of("payload", field)
    raise InvalidConfiguration(
        f"The column {field.name!r} has the type {wrong.simpleString()}, which JSON cannot "
        f"represent: leave it out, or write the files with {cast}."
    )


def _is_binary(kind: DataType) -> bool:
    return isinstance(kind, BinaryType)


def _not_json(kind: DataType) -> DataType | None:
    """Return the first type that JSON cannot represent, or None."""
    if isinstance(kind, StructType):
        inner = [each.dataType for each in kind.fields]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    else:
        return None if isinstance(kind, _IN_JSON) else kind
    return next((wrong for each in inner if (wrong := _not_json(each)) is not None), None)
