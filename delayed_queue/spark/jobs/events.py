"""What ended, from wherever it is kept, in one form: the report measures these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.spark.jobs.archives import read_rows
from delayed_queue.spark.jobs.lakes import KIND, read_lake
from delayed_queue.spark.jobs.tables import KNOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FIELDS: Final[Mapping[str, str]] = {
    "kind": "string",
    "created_at": "timestamp",
    "scheduled_at": "timestamp",
    "finished_at": "timestamp",
    "attempts": "int",
    "outcome": "string",
    "reason": "string",
}
SCHEMA: Final = ", ".join(f"{name} {kind}" for name, kind in FIELDS.items())
# What an outcome is called elsewhere, in upper case.
_DONE: Final = ("DONE", "SUCCESSFULLY_PROCESSED", "DELIVERED", "SENT", "SUCCESS", "SUCCEEDED")
_LETTERS: Final = (
    "pKind AS kind", "timestamp_millis(createdAt) AS created_at",
    "timestamp_millis(scheduledAtInitially) AS scheduled_at",
    "timestamp_millis(diedAt) AS finished_at", "attempts", "'dead' AS outcome", "reason",
)  # fmt: skip
_DRAINED: Final = (
    KIND, "created_at", "scheduled_at_initially AS scheduled_at", "drained_at AS finished_at",
    "attempts", "'done' AS outcome", "CAST(NULL AS STRING) AS reason",
)  # fmt: skip
_LETTER_COLUMNS: Final = (
    "id", "pKind", "attempts", "reason", "scheduledAtInitially", "createdAt", "diedAt",
)  # fmt: skip


def parse_mapping(pairs: Sequence[str]) -> dict[str, str]:
    """Return the column by field of ``column=field`` texts."""
    found = {}
    for pair in pairs:
        column, equals, name = pair.rpartition("=")
        if not equals or not column or name not in FIELDS:
            raise InvalidConfiguration(
                f"--map {pair!r} is not column=field; the fields are {', '.join(FIELDS)}."
            )
        found[name] = column
    return found


def drained(spark: SparkSession, path: str) -> DataFrame:
    """Return the messages that drain has written."""
    return _selected(read_lake(spark, path), _DRAINED, path, "of drain")


def archived(spark: SparkSession, path: str) -> DataFrame:
    """Return the dead letters that archive has written."""
    return _selected(read_lake(spark, path), _LETTERS, path, "an archive of dead letters")


def stored_letters(spark: SparkSession) -> DataFrame:
    """Return the dead letters that the database has, without their payloads."""
    return read_rows(spark, KNOWN["dead-letters"], _LETTER_COLUMNS).selectExpr(*_LETTERS)


def others(spark: SparkSession, path: str, mapping: Mapping[str, str]) -> DataFrame:
    """Return rows of the application's own, such as archived notifications."""
    frame = read_lake(spark, path)
    for name in ("finished_at", "kind"):
        if mapping.get(name, name) not in frame.columns:
            raise InvalidConfiguration(
                f"{path} has no column {mapping.get(name, name)!r} for {name}; it has "
                f"{', '.join(frame.columns)}. Say which is what: --map column=field."
            )
    columns = [_expression(frame, mapping.get(name, name), name) for name in FIELDS]
    return frame.selectExpr(*columns)


def _expression(frame: DataFrame, column: str, name: str) -> str:
    value = f"`{column}`" if column in frame.columns else "NULL"
    if name == "outcome" and value != "NULL":
        words = ", ".join(f"'{each}'" for each in _DONE)
        return f"IF(upper({value}) IN ({words}), 'done', 'dead') AS outcome"
    if name == "outcome":
        return "'done' AS outcome"
    return f"CAST({value} AS {FIELDS[name]}) AS {name}"


def _selected(frame: DataFrame, columns: Sequence[str], path: str, what: str) -> DataFrame:
    needed = "drained_at" if columns is _DRAINED else "diedAt"
    if needed not in frame.columns:
        raise InvalidConfiguration(
            f"{path} is not {what}: it has the columns {', '.join(frame.columns)}."
        )
    return frame.selectExpr(*columns)


def together(spark: SparkSession, frames: Sequence[DataFrame]) -> DataFrame:
    """Return all rows in one frame; an empty one where there is none."""
    if not frames:
        return spark.createDataFrame([], SCHEMA)
    return reduce(lambda left, right: left.unionByName(right), frames)
