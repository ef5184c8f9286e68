"""The nested dict ``DELAYED_QUEUE["SPARK"]`` as one frozen, validated dataclass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration, suggest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The environment variable with the connection string.
VARIABLE: Final = "DELAYED_QUEUE_DSN"
# Set by build_session(): the number of parallel tasks.
TASKS: Final = "DELAYED_QUEUE_SPARK_TASKS"
# Partitions of a read per parallel task.
TASKS_EACH: Final = 3

_MASTER: Final = re.compile(r"(local(\[.+\]|-cluster\[.+\])?|spark://.+|yarn|k8s://.+|sc://.+)")
_MEMORY: Final = re.compile(r"[1-9]\d*[mgt]", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of the pipeline.

    ``MASTER``: Spark's master; None: that of spark-submit, else this machine.
    ``EXECUTORS``: the number of executors of a cluster; None: the cluster's default.
    ``CORES``: the cores of each executor; each core opens one connection.
    ``MEMORY``: of each executor, and of the driver on this machine, such as ``"2g"``.
    ``MAX_CONNECTIONS``: the maximum of database connections of a command.
    ``CONF``: further settings of Spark, by name.
    """

    MASTER: str | None = None
    EXECUTORS: int | None = None
    CORES: int | None = None
    MEMORY: str | None = None
    MAX_CONNECTIONS: int = 32
    CONF: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in fields(self):
            wrong = _wrong(each.name, getattr(self, each.name))
            if wrong:
                raise InvalidConfiguration(f"SPARK[{each.name!r}] {wrong}")

    @classmethod
    def of(cls, configured: Any) -> SparkSettings:
        """Return the settings of a dict; refuse unknown keys and wrong values."""
        if isinstance(configured, SparkSettings):
            return configured
        if not isinstance(configured, Mapping):
            raise InvalidConfiguration("SPARK must be a dict.")
        known = {each.name for each in fields(cls)}
        for key in configured:
            if key not in known:
                raise InvalidConfiguration(f"SPARK has an unknown key {key!r}.{_hint(key, known)}")
        return cls(**configured)


def _hint(key: Any, known: set[str]) -> str:
    close = suggest(key, known)
    return f" Did you mean {close!r}?" if close else f" Known keys: {', '.join(sorted(known))}."


def _wrong(name: str, value: Any) -> str | None:
    """Return what the value must be, or None when it is."""
    if name == "CONF":
        are_texts = isinstance(value, Mapping) and all(
            isinstance(each, str) for pair in value.items() for each in pair
        )
        return None if are_texts else "must be a dict of text by text."
    if value is None and name != "MAX_CONNECTIONS":
        return None
    rules = {
        "MASTER": (_matches(_MASTER, value), "must be local[…], spark://…, yarn or k8s://…."),
        "EXECUTORS": (_is_count(value, 10_000), "must be an int from 1 to 10000."),
        "CORES": (_is_count(value, 1000), "must be an int from 1 to 1000."),
        "MEMORY": (_matches(_MEMORY, value), "must be a size such as '512m' or '2g'."),
        "MAX_CONNECTIONS": (_is_count(value, 10_000), "must be an int from 1 to 10000."),
    }
    fits, rule = rules[name]
    return None if fits else rule


def _is_count(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_elsewhere(spark: SparkSession) -> bool:
    """True for a session of Spark Connect, which has no JVM here."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def partitions_on(spark: SparkSession, asked: int | None) -> dict[str, str]:
    """Return the option numPartitions; nothing leaves it to the reader.

    A reader on a server of Spark Connect does not see the number of tasks in the environment.
    """
    if asked is None and is_elsewhere(spark):
        asked = TASKS_EACH * tasks_of(spark)
    return {} if asked is None else {"numPartitions": str(asked)}


def tasks_of(spark: SparkSession) -> int:
    """Return the number of parallel tasks of the session."""
    if not is_elsewhere(spark):
        return int(spark.sparkContext.defaultParallelism)
    from pyspark.sql.functions import spark_partition_id

    # By default Spark makes one partition for each parallel task.
    return int(spark.range(100_000).select(spark_partition_id()).distinct().count())
