"""The section ``DELAYED_QUEUE["SPARK"]``, and the size of a session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The environment variable with the connection string.
VARIABLE: Final = "DELAYED_QUEUE_DSN"
# Set by build_session(): the number of parallel tasks.
TASKS: Final = "DELAYED_QUEUE_SPARK_TASKS"
# Partitions of a read per parallel task.
TASKS_EACH: Final = 3

MASTERS: Final = re.compile(r"(local(\[.+\]|-cluster\[.+\])?|spark://.+|yarn|k8s://.+|sc://.+)")


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """The settings of the pipeline; ``apps`` has their rules.

    ``MASTER``: Spark's master; None: that of spark-submit, else this machine.
    ``MAX_CONNECTIONS``: the maximum of cores, each of which opens a connection.
    ``CONF``: settings of Spark, by name.
    """

    MASTER: str | None = None
    MAX_CONNECTIONS: int = 32
    CONF: Mapping[str, str] = field(default_factory=dict)


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
