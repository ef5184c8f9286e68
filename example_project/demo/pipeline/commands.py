"""Has commands of the pipeline run by a process beside this one, and tells how they get on."""

from __future__ import annotations

import json
import re
import shlex
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from delayed_queue.exceptions import DelayedQueueError
from example_project.demo.console import Console
from example_project.demo.exceptions import DemoError, Stalled
from example_project.demo.processes import Child
from example_project.demo.stage import Stage

# As a data engineer types it; the desk runs the same.
COMMAND: Final = "manage.py queuepipeline"
STOP_SECONDS: Final = 20.0
QUARANTINED: Final = 3
_PROGRESS: Final = re.compile(r"\[ *[\d.]+ s\] (.*)")
_NO_SPARK: Final = (
    "The pipeline needs PySpark, which is not installed: "
    "pip install 'django-delayed-queue[spark,spark-jre]'."
)


def what_is_missing() -> str:
    """Return what is to be installed before Spark can start; nothing when all is there."""
    if find_spec("pyspark") is None or find_spec("pyarrow") is None:
        return _NO_SPARK
    from delayed_queue.spark.session import find_java_home

    try:
        find_java_home()
    except DelayedQueueError as error:
        return str(error)
    return ""


class Order:
    """A command that was handed over; its answer comes as a file."""

    def __init__(self, arguments: list[str], path: Path) -> None:
        self.arguments = arguments
        self._path = path
        self._found: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        if self._found is None and self._path.exists():
            self._found = json.loads(self._path.read_text(encoding="utf-8"))
        return self._found is not None

    @property
    def answer(self) -> dict[str, Any]:
        """What the command answered; raises DemoError when it failed."""
        if not self.is_done or self._found is None or self._found["code"] not in (0, QUARANTINED):
            raise DemoError(f"`{COMMAND} {self.arguments[0]}` failed.")
        found: dict[str, Any] = self._found["answer"]
        return found


class Desk:
    """The process with Spark, and what is to be read in its log."""

    def __init__(self, stage: Stage) -> None:
        self._console: Console = stage.console
        self._directory = stage.directory
        self._child: Child = stage.children.start("pipeline", "pipeline")
        self._read = 0
        self._orders: list[Order] = []
        self._waits_for_spark = True

    def hand_over(self, *arguments: str) -> Order:
        """Have a command run when those before it are done."""
        self._console.step("command", f"{COMMAND} {shlex.join(arguments)}")
        path = self._directory / f"pipeline-answer-{len(self._orders) + 1}.json"
        order = Order([*arguments, "--format", "json"], path)
        line = json.dumps({"arguments": order.arguments, "answer": str(path)})
        self._child.tell(line)
        self._orders.append(order)
        return order

    def tell(self) -> None:
        """Say what Spark has said since, and raise DemoError when it has ended."""
        for line in self._new_lines():
            if found := _PROGRESS.fullmatch(line):
                self._console.step("spark", found[1])
                self._waits_for_spark = self._waits_for_spark and "ready" not in found[1]
        if not self._child.is_running:
            raise Stalled(f"Spark could not go on:\n{self._child.tail()}")

    def _new_lines(self) -> list[str]:
        text = self._child.log.read_bytes()[self._read :]
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.decode(errors="replace").splitlines()

    @property
    def said(self) -> tuple[int, int]:
        """How far it is: what it has logged, and answered."""
        return self._read, sum(each.is_done for each in self._orders)

    def state(self) -> str:
        """Say what is waited for."""
        if self._waits_for_spark:
            return "waiting for Spark: Java and a session of it take about ten seconds"
        waiting = [each.arguments[0] for each in self._orders if not each.is_done]
        return f"Spark is at the {waiting[0]}" if waiting else "Spark has nothing to do"

    def close(self) -> int:
        """Have the process end in order, and return its exit code."""
        self._child.is_expected_to_end = True
        self._child.tell("")
        return self._child.wait(time.monotonic() + STOP_SECONDS)
