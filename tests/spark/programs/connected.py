"""The pipeline's commands, one after the other, on a session of Spark Connect."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

from pyspark.sql import SparkSession

from delayed_queue.spark import commands, register


def run(*arguments: str) -> None:
    code = commands.main([*arguments, "--format", "json"])
    print(json.dumps({"command": arguments[0], "code": code}), flush=True)  # noqa: T201


def main(directory: Path) -> None:
    source, lake = f"{directory}/in.csv.gz", f"{directory}/lake"
    run(
        "import",
        source,
        "--map",
        "id=key",
        "--map",
        "amount=payload",
        "--queue",
        "orders",
        "--quarantine",
        f"{directory}/q",
    )
    run("snapshot", "--to", f"{directory}/snapshots")
    run("drain", "--queue", "orders", "--to", lake)
    run("replay", lake)
    handler = ("--handler", "tests.spark.pipeline_targets:answering", "--checkpoint")
    run("drain", "--queue", "orders", *handler, f"{directory}/checkpoint")
    run("report", "--drained", lake, "--out", f"{directory}/report")
    run("doctor")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    register(session)
    main(Path(sys.argv[1]))
    session.stop()
