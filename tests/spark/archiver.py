"""An archive in a process of its own that kills itself at a given step.

It borrows the JVM of the test run, as starting one for each step would take minutes: what dies is
the process that decides, writes manifests and deletes, with its connections.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from delayed_queue.spark.jobs import archives, files, manifests
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.jobs.tables import KNOWN

# Each is a method and whether the process dies before or after it; of repeated calls the n-th.
STEPS = {
    "planned": (manifests.Manifests, "plan", "after", 1),
    "written": (archives._Archive, "_write", "after", 1),
    "staged": (archives._Archive, "_stage", "after", 1),
    "renamed": (files.Files, "rename", "after", 1),
    "published": (archives._Archive, "_publish", "after", 1),
    "in the middle": (manifests.Manifests, "pruned", "after", 2),
    "before the commit": (archives._Archive, "_delete", "after", 2),
    "deleted": (archives._Archive, "_prune", "last", 1),
}


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def arm(step: str) -> None:
    """Have the process die at that step."""
    owner, name, when, number = STEPS[step]
    if when == "last":
        arm_last()
        return
    original = getattr(owner, name)
    calls = []

    def replaced(*arguments: Any, **named: Any) -> Any:
        calls.append(name)
        answer = original(*arguments, **named)
        if len(calls) == number:
            die()
        return answer

    setattr(owner, name, replaced)


def arm_last() -> None:
    """Die when everything is deleted, and the manifest does not say so yet."""
    original = manifests.Manifests.advance

    def advance(self: Any, manifest: Any, to: str, **named: Any) -> None:
        if to == "pruned":
            die()
        original(self, manifest, to, **named)

    manifests.Manifests.advance = advance  # type: ignore[method-assign]


def borrowed_session() -> Any:
    """Return a session on the JVM that the environment names, which has a context already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    SparkContext._ensure_initialized(gateway=gateway)
    jvm: Any = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    jsc = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jconf=jsc.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=jsc, conf=conf))


def main(step: str, lake: str, cutoff: str) -> None:
    arm(step)
    options = archives.ArchiveOptions(
        (KNOWN["dead-letters"],), int(cutoff), lake, rows_per_file=20, bite=10
    )
    archives.run(borrowed_session(), options, Console())


if __name__ == "__main__":
    main(*sys.argv[1:])
