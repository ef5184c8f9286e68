"""All commands of the pipeline in order: ``walking.py DIRECTORY HANDLER [MASTER]``.

It uses a session of Spark Connect if the master is ``connect``, else its own session.
"""

from __future__ import annotations

import json
import sys
import warnings

from pyspark.sql import SparkSession

from delayed_queue.spark import build_session, register
from delayed_queue.spark.pipeline import cli


def run(*arguments: str) -> None:
    code = cli.main([*arguments, "--format", "json"])
    print(json.dumps({"command": arguments[0], "code": code}), flush=True)  # noqa: T201


def walk(directory: str, handler: str) -> None:
    source, lake, archive = f"{directory}/in.csv.gz", f"{directory}/lake", f"{directory}/archive"
    fields = ("--map", "id=key", "--map", "amount=payload", "--queue", "orders")
    run("import", source, *fields, "--max-bad-ratio", "0.5", "--quarantine", f"{directory}/q")
    run("snapshot", "--to", f"{directory}/snapshots")
    run("drain", "--queue", "orders", "--to", lake)
    run("replay", lake)
    checkpoint = ("--checkpoint", f"{directory}/checkpoint")
    run("drain", "--queue", "orders", "--handler", handler, *checkpoint)
    run("archive", "--older-than", "30d", "--to", archive, "--rows-per-file", "20",
        "--partitions", "2")  # fmt: skip
    letters = f"{archive}/delayed_queue_dead_letter"
    run("report", "--drained", lake, "--archive", letters, "--partitions", "2",
        "--out", f"{directory}/report")  # fmt: skip
    run("doctor")


def session_on(master: str | None) -> SparkSession:
    if master == "connect":
        return register(SparkSession.builder.remote("local[2]").getOrCreate())
    if master is not None:
        return build_session("walking", master, spark__ui__enabled="false")
    return register(SparkSession.builder.getOrCreate())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    session = session_on(sys.argv[3] if len(sys.argv) > 3 else None)
    walk(*sys.argv[1:3])
    session.stop()
