"""The column types of Parquet that an import can read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import types

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.pipeline.records import Rules
from delayed_queue.spark.source.schema import WHOLE, cast_of, wrong_type

Types = tuple[type[types.DataType], ...]
_TEXT: Final[Types] = (types.StringType,)
_LOCAL: Final[Types] = (types.TimestampNTZType, types.DateType)
_FRACTIONS: Final[Types] = (types.FloatType, types.DoubleType)
# The types that each field accepts.
_IMPORTED: Final[Mapping[str, Types]] = {
    "key": (*_TEXT, *WHOLE),
    "group": (*_TEXT, *WHOLE),
    "queue": _TEXT,
    "schedule_at": (types.TimestampType, *_LOCAL, *_TEXT, *WHOLE),
    "delay": (types.DayTimeIntervalType, *_TEXT, *_FRACTIONS, *WHOLE),
    "headers": (*_TEXT, types.BinaryType, types.StructType, types.MapType),
}
_PAYLOADS: Final[Mapping[str, Types]] = {"text": _TEXT, "bytes": (types.BinaryType,)}
_IN_JSON: Final[Types] = (
    *_TEXT, *WHOLE, *_FRACTIONS, *_LOCAL, types.BooleanType, types.DecimalType,
    types.TimestampType, types.NullType,
)  # fmt: skip


def check_imported(schema: types.StructType, rules: Rules) -> None:
    """Refuse columns of a type that makes every record invalid, before any is read."""
    column_of = rules.column_of
    name_of = {column: name for name, column in column_of.items()}
    has_payload = column_of["payload"] in schema.fieldNames()
    for field in schema.fields:
        name = name_of.get(field.name, "")
        allowed = _IMPORTED.get(name) or (name == "payload" and _PAYLOADS.get(rules.codec))
        if allowed:
            _check_type(name, field, allowed)
            _check_zone(name, field, rules)
        elif name == "payload" or not has_payload:
            _check_json(field, may_be_binary=name == "payload")


def _check_type(name: str, field: types.StructField, allowed: Types) -> None:
    if not isinstance(field.dataType, (*allowed, types.NullType)):
        is_binary = allowed == (types.BinaryType,)
        cast = f"CAST({field.name} AS BINARY)" if is_binary else cast_of(name, field)
        raise InvalidConfiguration(wrong_type(field, [e.typeName() for e in allowed], cast))


def _check_zone(name: str, field: types.StructField, rules: Rules) -> None:
    if name == "schedule_at" and isinstance(field.dataType, _LOCAL) and rules.time_zone is None:
        raise InvalidConfiguration(
            f"The column {field.name!r} is {field.dataType.simpleString()}, which names no time "
            "zone: pass --time-zone, as in Europe/Berlin."
        )


def _check_json(field: types.StructField, *, may_be_binary: bool) -> None:
    """Refuse a column that JSON cannot represent; bytes may contain JSON."""
    is_binary = isinstance(field.dataType, types.BinaryType)
    wrong = _not_json(field.dataType)
    if wrong is None or (may_be_binary and is_binary):
        return
    cast = f"base64({field.name})" if is_binary else cast_of("payload", field)
    raise InvalidConfiguration(
        f"The column {field.name!r} has the type {wrong.simpleString()}, which JSON cannot "
        f"represent: leave it out, or write the files with {cast}."
    )


def _not_json(kind: types.DataType) -> types.DataType | None:
    """Return the first type that JSON cannot represent, or None."""
    if isinstance(kind, types.StructType):
        inner = [each.dataType for each in kind.fields]
    elif isinstance(kind, types.MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, types.ArrayType):
        inner = [kind.elementType]
    else:
        return None if isinstance(kind, _IN_JSON) else kind
    return next((wrong for each in inner if (wrong := _not_json(each)) is not None), None)
