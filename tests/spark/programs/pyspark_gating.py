"""A module for ``spark.python.worker.module``: Spark's workers wait at a gate.

Each task takes a number. From GATE_FIRST to GATE_LAST they wait until the directory GATE has a file
"open". Thus a test stops any command in the middle of its work.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from pyspark import worker


def main(infile: Any, outfile: Any) -> None:
    gate = Path(os.environ["GATE"])
    if int(os.environ["GATE_FIRST"]) <= take_number(gate) <= int(os.environ["GATE_LAST"]):
        wait(gate / "open")
    worker.main(infile, outfile)


def take_number(gate: Path) -> int:
    """Return the first number that no other task has."""
    for number in count(1):
        with suppress(FileExistsError):
            (gate / f"task-{number}").touch(exist_ok=False)
            return number
    raise AssertionError("numbers do not end")


def wait(path: Path) -> None:
    pause = threading.Event()
    for _ in range(15_000):
        if path.exists():
            return
        pause.wait(0.02)
    raise TimeoutError("the gate was not opened in time")
