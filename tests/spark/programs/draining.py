"""Drain a queue into Parquet: ``draining.py DIRECTORY SINK BLOCK MASTER``.

``file`` is Spark's own sink, ``batch`` a foreachBatch that writes. ``BLOCK`` is where the driver
stands still until it is killed: ``task``, in a task of the first batch, ``sink``, behind the sink
and before the commit, ``executor``, where a task kills its executor instead, or ``none``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from delayed_queue.spark import build_session, drain
from tests.spark.support import QUIET, wait_in_task


def main(directory: str, sink: str, block: str, master: str) -> None:
    lake = Path(directory)
    spark = build_session("draining", master, **QUIET)
    print("APPLICATION", spark.sparkContext.applicationId)  # noqa: T201
    spark.sparkContext.setLogLevel("OFF")
    stream = (
        spark.readStream.format("delayed_queue")
        .options(queue="orders", maxMessagesPerTrigger="40", numPartitions="2", renew="false")
        .load()
    )

    def stumble(batches: Any) -> Any:
        for batch in batches:
            if block == "task":
                stand_still(lake)
            if block == "executor" and only_once(lake):
                os.kill(executor(), signal.SIGKILL)
            yield batch

    def write(frame: Any, number: int) -> None:
        frame.write.mode("append").parquet(f"{lake}/rows")
        if block == "sink":
            stand_still(lake)

    rows = stream.mapInArrow(stumble, stream.schema)
    if sink == "file":
        writer = rows.writeStream.format("parquet").option("path", f"{lake}/rows")
    else:
        writer = rows.writeStream.foreachBatch(write)
    drain(writer, f"{lake}/checkpoint")
    spark.stop()


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
    """Return the process id of the JVM above this worker, which its daemon has forked."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
