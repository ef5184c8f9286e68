"""The columns that are read and written: their types, and who is told when one is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from delayed_queue.codecs import MAX_KIND_LENGTH, codec_named, kind_of
from delayed_queue.exceptions import InvalidConfiguration, suggest
from delayed_queue.messages import (
    MAX_GROUP_LENGTH,
    MAX_KEY_LENGTH,
    MAX_MILLISECONDS,
    MIN_MILLISECONDS,
)
from delayed_queue.spark.source.records import Checker

TEXT_CODECS: Final = ("|json", "|text")

# In the order in which they are shown; the rest says what PostgreSQL answers.
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
    "id": (LongType(), "int64"),
}
# The queue is made from the kind, on the way.
_SOURCES: Final = {"queue": "kind"}

_WRITTEN: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (StringType,),
    "payload": (StringType, BinaryType, StructType, ArrayType, MapType),
    "schedule_at": (TimestampType,),
    "delay": (DayTimeIntervalType, LongType, IntegerType),
    "headers": (StringType, MapType),
    "group": (StringType,),
    "queue": (StringType,),
    "kind": (StringType,),
}
_REQUIRED: Final = ("key", "payload")
_WHOSE: Final = ("queue", "kind")


def read_schema(kind: str | None) -> StructType:
    """Return the schema of a read that names none: text where the codec of the kind is text."""
    is_text = kind is not None and kind.endswith(TEXT_CODECS)
    types = {name: each for name, (each, _) in _READ.items()}
    types["payload"] = StringType() if is_text else BinaryType()
    return StructType([StructField(name, each, True) for name, each in types.items()])


def check_read(schema: StructType) -> None:
    """Refuse a schema with columns that there are not, or of a type they do not have."""
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
    """Return what is to be selected for those columns, each once, in order: at least one."""
    columns = list(dict.fromkeys(_SOURCES.get(name, name) for name in names))
    if is_kind_known and columns != ["kind"]:
        return [each for each in columns if each != "kind"]
    return columns


def source_schema(columns: Iterable[str]) -> pa.Schema:
    """Return the types that PostgreSQL answers with for what is selected."""
    return pa.schema([(name, pa.type_for_alias(_READ[name][1])) for name in columns])


def check_written(schema: StructType, kind: str | None = None) -> None:
    """Refuse rows that cannot be offers, by the first column that is missing or wrong.

    ``kind`` is that of all of them; without it a column says of each which it has.
    """
    said = [f"the column {name!r}" for name in _WHOSE if name in schema.fieldNames()]
    said += [] if kind is None else ["an option"]
    if len(said) > 1:
        raise InvalidConfiguration(
            f"Name the queue of the rows only once: there are {' and '.join(said)}."
        )
    for field in schema.fields:
        if field.name not in _WRITTEN:
            raise InvalidConfiguration(_no_column(field.name, _WRITTEN))
        if not isinstance(field.dataType, _WRITTEN[field.name]) or not _fits(field):
            names = [each.typeName() for each in _WRITTEN[field.name]]
            raise InvalidConfiguration(_wrong_type(field, names, cast_of(field.name, field)))
    for name in _REQUIRED:
        if name not in schema.fieldNames():
            raise InvalidConfiguration(
                f"An offer needs the column {name!r}; there are {', '.join(schema.fieldNames())}."
            )


def _fits(field: StructField) -> bool:
    """Return whether headers are a map of texts, if they are one; a payload may be any."""
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


def cast_of(name: str, field: StructField) -> str:
    """Return the expression of Spark that makes the column one of that name in an offer."""
    column, kind = field.name, field.dataType
    if name == "schedule_at":
        if isinstance(kind, _WHOLE):
            return f"timestamp_millis({column})"
        return f"CAST({column} AS TIMESTAMP), which reads it in the session's time zone"
    if name == "delay":
        return f"CAST({column} AS INTERVAL DAY TO SECOND)"
    if isinstance(kind, VariantType | StructType | ArrayType | MapType):
        return f"to_json({column})"
    return f"CAST({column} AS STRING)"


# What an import takes from each column of Parquet.
_IMPORTED: Final[Mapping[str, tuple[type[DataType], ...]]] = {
    "key": (StringType, *_WHOLE),
    "group": (StringType, *_WHOLE),
    "queue": (StringType,),
    "schedule_at": (TimestampType, TimestampNTZType, DateType, StringType, *_WHOLE),
    "delay": (DayTimeIntervalType, StringType, FloatType, DoubleType, *_WHOLE),
    "headers": (StringType, BinaryType, StructType, MapType),
}
_PAYLOADS: Final = {"text": (StringType,), "bytes": (BinaryType,)}
_IN_JSON: Final = (
    StringType, BooleanType, *_WHOLE, FloatType, DoubleType, DecimalType, DateType, TimestampType,
    TimestampNTZType, NullType,
)  # fmt: skip


def check_imported(schema: StructType, checker: Checker) -> None:
    """Refuse columns of Parquet by which every record would be bad, before any is read."""
    name_of = {column: name for name, column in checker.column_of.items()}
    has_payload = checker.column_of["payload"] in schema.fieldNames()
    for field in schema.fields:
        name = name_of.get(field.name, "")
        if name in _IMPORTED:
            _check_type(name, field, _IMPORTED[name])
            _check_zone(name, field, checker)
        elif name == "payload" and checker.rules.codec in _PAYLOADS:
            _check_type(name, field, _PAYLOADS[checker.rules.codec])
        elif name == "payload" or not has_payload:
            _check_json(field, may_be_binary=name == "payload")


def _check_type(name: str, field: StructField, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(field.dataType, (*allowed, NullType)):
        is_binary = allowed == (BinaryType,)
        cast = f"CAST({field.name} AS BINARY)" if is_binary else cast_of(name, field)
        raise InvalidConfiguration(_wrong_type(field, [e.typeName() for e in allowed], cast))


def _check_zone(name: str, field: StructField, checker: Checker) -> None:
    is_local = isinstance(field.dataType, TimestampNTZType | DateType)
    if name == "schedule_at" and is_local and checker.rules.time_zone is None:
        raise InvalidConfiguration(
            f"The column {field.name!r} is {field.dataType.simpleString()}, which names no time "
            "zone: pass --time-zone, as in Europe/Berlin."
        )


def _check_json(field: StructField, *, may_be_binary: bool) -> None:
    """Refuse a column that is to be JSON and has no form in it; bytes may be JSON already."""
    wrong = _not_json(field.dataType)
    if wrong is None or (may_be_binary and wrong is field.dataType and _is_binary(wrong)):
        return
    cast = f"base64({field.name})" if _is_binary(field.dataType) else cast_of("payload", field)
    raise InvalidConfiguration(
        f"The column {field.name!r} has the type {wrong.simpleString()}, which JSON has no form "
        f"for: leave it out, or write the files with {cast}."
    )


def _is_binary(kind: DataType) -> bool:
    return isinstance(kind, BinaryType)


def _not_json(kind: DataType) -> DataType | None:
    """Return the first type in it that JSON has no form for."""
    if isinstance(kind, StructType):
        inner = [each.dataType for each in kind.fields]
    elif isinstance(kind, MapType):
        inner = [kind.keyType, kind.valueType]
    elif isinstance(kind, ArrayType):
        inner = [kind.elementType]
    else:
        return None if isinstance(kind, _IN_JSON) else kind
    return next((wrong for each in inner if (wrong := _not_json(each)) is not None), None)


def told_by_types(schema: StructType, checker: Checker) -> dict[str, str] | None:
    """Return the columns of messages, and whether a record ``fits``, as expressions of Spark.

    None where types do not tell: then records have to be looked at in Python.
    """
    names = {field.name: field.dataType for field in schema.fields}
    given = {
        field: (_quoted(name), names[name])
        for field, name in checker.column_of.items()
        if name in names
    }
    keys, payloads = _key_told(given), _payload_told(given, checker)
    kinds, times, groups = _kind_told(given, checker), given.get("schedule_at"), given.get("group")
    is_told = all(
        found is None or isinstance(found[1], kind)
        for found, kind in ((times, TimestampType), (groups, StringType))
    )
    if not is_told or keys is None or payloads is None or kinds is None:
        return None
    time = "CAST(NULL AS BIGINT)" if times is None else f"unix_millis({times[0]})"
    group = "CAST(NULL AS STRING)" if groups is None else f"nullif({groups[0]}, '')"
    fit = [
        *_text_fits(keys, MAX_KEY_LENGTH),
        *_text_fits(kinds, MAX_KIND_LENGTH),
        f"({group} IS NULL OR ({' AND '.join(_text_fits(group, MAX_GROUP_LENGTH))}))",
        f"({time} IS NULL OR {time} BETWEEN {MIN_MILLISECONDS}L AND {MAX_MILLISECONDS}L)",
        f"octet_length({payloads}) <= {checker.rules.max_bytes}",
        *(f"{given[name][0]} IS NULL" for name in ("delay", "headers") if name in given),
    ]
    if isinstance(given["payload"][1], StringType):
        fit.append(f"is_valid_utf8({given['payload'][0]})")
    return {
        "kind": kinds, "key": keys, "payload": payloads, "schedule_ms": time, "grouped": group,
        "fits": f"coalesce({' AND '.join(fit)}, false)",
    }  # fmt: skip


_Given = Mapping[str, tuple[str, DataType]]


def _key_told(given: _Given) -> str | None:
    name, kind = given.get("key", ("", DataType()))
    if isinstance(kind, StringType):
        return name
    return f"CAST({name} AS STRING)" if isinstance(kind, _WHOLE) else None


def _payload_told(given: _Given, checker: Checker) -> str | None:
    """Return the payload's bytes; JSON has to be read, which Spark does not do as we do."""
    name, kind = given.get("payload", ("", DataType()))
    wanted = {"bytes": BinaryType, "text": StringType}.get(checker.rules.codec)
    return f"CAST({name} AS BINARY)" if wanted and isinstance(kind, wanted) else None


def _kind_told(given: _Given, checker: Checker) -> str | None:
    """Return the kind: of what the record names, or else of the queue of all; NULL of neither."""
    name, kind = given.get("queue", ("NULL", StringType()))
    queue = _literal(checker.rules.queue) if checker.rules.queue else "NULL"
    if not isinstance(kind, StringType) or name == queue == "NULL":
        return None
    suffix = _literal(kind_of("", codec_named(checker.rules.codec)))
    return f"concat(coalesce(nullif({name}, ''), {queue}), {suffix})"


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _text_fits(text: str, most: int) -> list[str]:
    return [
        f"char_length({text}) BETWEEN 1 AND {most}",
        f"is_valid_utf8({text})",
        f"NOT contains({text}, chr(0))",
    ]


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
