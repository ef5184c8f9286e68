"""Drain two queues into Parquet: ``draining.py DIRECTORY BLOCK MASTER``.

The queue "file" goes through Spark's own sink, "batch" through a foreachBatch that writes. With the
block "stand" the driver waits until it is killed: in a task of the first batch of the one, and
behind the sink of the other, before the commit. With "executor" a task kills its executor.
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from delayed_queue.spark import build_session, drain
from tests.spark.support import QUIET, wait_in_task


def main(directory: str, block: str, master: str) -> None:
    spark = build_session("draining", master, **QUIET)
    spark.sparkContext.setLogLevel("OFF")
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(run, spark, name, directory, block) for name in ("file", "batch")]:
            each.result()
    spark.stop()


def run(spark: Any, name: str, directory: str, block: str) -> None:
    """Drain the queue of that name into a directory of that name, through that sink."""
    lake = Path(directory) / name
    lake.mkdir(exist_ok=True)
    stream = (
        spark.readStream.format("delayed_queue")
        .options(queue=name, maxMessagesPerTrigger="40", numPartitions="2")
        .load()
    )

    def stumble(batches: Any) -> Any:
        for batch in batches:
            if block == "stand" and name == "file":
                stand_still(lake)
            if block == "executor" and only_once(lake):
                os.kill(executor(), signal.SIGKILL)
            yield batch

    def write(frame: Any, number: int) -> None:
        frame.write.mode("append").parquet(f"{lake}/rows")
        if block == "stand":
            stand_still(lake)

    rows = stream.mapInArrow(stumble, stream.schema)
    if name == "file":
        writer = rows.writeStream.format("parquet").option("path", f"{lake}/rows")
    else:
        writer = rows.writeStream.foreachBatch(write)
    drain(writer, f"{lake}/checkpoint")


def stand_still(lake: Path) -> None:
    (lake / "reached").touch()
    wait_in_task(lambda: False)


def only_once(lake: Path) -> bool:
    try:
        (lake / "killed").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def executor() -> int:
    """Return the id of the JVM process above this worker, whose daemon forked it."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
