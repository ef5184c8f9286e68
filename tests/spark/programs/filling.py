"""Offer a thousand messages as job "j": ``filling.py DIRECTORY MASTER``.

The executor of the first attempt at partition 0 dies when chunks of it were committed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from delayed_queue.spark import build_session, counts
from tests.spark.programs.draining import executor, only_once
from tests.spark.support import QUIET, wait_in_task


def main(directory: str, master: str) -> None:
    lake = Path(directory)
    conf = {**QUIET, "spark__sql__execution__arrow__maxRecordsPerBatch": "50"}
    spark = build_session("filling", master, **conf)
    print("APPLICATION", spark.sparkContext.applicationId)  # noqa: T201
    spark.sparkContext.setLogLevel("OFF")

    def die(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == 3 and only_once(lake):
                wait_in_task(lambda: counts("j").created >= 50)
                os.kill(executor(), signal.SIGKILL)
            yield batch

    rows = spark.range(0, 1000, 1, 4).selectExpr(
        "concat('k', id) AS key", "repeat('x', 5000) AS payload"
    )
    rows.mapInArrow(die, rows.schema).write.format("delayed_queue").options(
        queue="orders", codec="text", job="j", chunk="50"
    ).mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
