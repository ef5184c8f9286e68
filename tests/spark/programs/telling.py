"""Use the source on executors of their own: ``telling.py DIRECTORY``.

First they are killed while they offer and while they drain. Then the source is used in every way,
with every output of Spark about it recorded.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from delayed_queue.spark import build_session, drain
from tests.spark.programs import draining, filling
from tests.spark.support import QUIET


def command_lines() -> Iterator[str]:
    """Yield the command lines that ps shows to all users: JVM, executors, workers."""
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a zombie too
            yield " ".join(each.cmdline())


def main(directory: str) -> None:
    conf = {
        **QUIET,
        "spark__ui__enabled": "true",
        "spark__ui__port": "0",
        "spark__eventLog__enabled": "true",
        "spark__eventLog__compress": "false",
        "spark__eventLog__dir": f"file://{directory}",
        "spark__local__dir": directory,
        "spark__sql__execution__arrow__maxRecordsPerBatch": "50",
    }
    spark = build_session("telling", "local-cluster[2,1,1024]", **conf)
    print("APPLICATION", spark.sparkContext.applicationId)  # noqa: T201
    spark.sparkContext.setLogLevel("OFF")
    filling.run(spark, directory)
    draining.run(spark, "file", directory, "executor")
    spark.sparkContext.setLogLevel("INFO")
    rows = spark.range(4).selectExpr("concat('k', id) AS key", "'1' AS payload")
    rows.write.format("delayed_queue").option("queue", "orders").mode("append").save()
    read = spark.read.format("delayed_queue").options(queue="orders").load()
    read.explain("extended")
    read.collect()
    stream = spark.readStream.format("delayed_queue").option("queue", "orders").load()
    drain(stream.writeStream.format("noop"), f"{directory}/checkpoint")
    context = spark.sparkContext
    base = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
    for page in ("environment", "sql?details=true", "jobs", "stages?details=true"):
        with urllib.request.urlopen(f"{base}/{page}") as answer:  # noqa: S310 - the session's own
            sys.stdout.write(answer.read().decode())
    (Path(directory) / "commands").write_text("\n".join(command_lines()))
    print("TOLD")  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
