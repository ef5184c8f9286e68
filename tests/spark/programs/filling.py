"""Offer a thousand messages as job "j" while the executor of a task is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from delayed_queue.spark import counts
from tests.spark.programs.draining import executor, only_once
from tests.spark.support import wait_in_task


def run(spark: Any, directory: str) -> None:
    """Kill the executor of the first attempt at partition 0 after it has committed chunks."""
    lake = Path(directory) / "filling"
    lake.mkdir()

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
        queue="filled", codec="text", job="j", chunk="50"
    ).mode("append").save()
