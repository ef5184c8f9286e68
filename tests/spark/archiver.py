"""An archive that is disturbed at a given step: a process that kills itself.

It borrows the JVM of the test run, since starting one for each step would take minutes. The dying
process decides and writes manifests, with its connections. Its tasks continue.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from delayed_queue.spark.pipeline import archives, manifests
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.pipeline.tables import KNOWN

# Each is a method; for repeated calls it names the n-th, after which the fault happens.
STEPS = {
    "planned": (manifests.Manifests, "plan", 1),
    "in files": (archives.Archive, "_write_files", 1),
    "read back": (archives.Archive, "read_back", 1),
    "written": (archives.Archive, "write", 1),
    # The manifest does not have it yet.
    "deleted": (archives.Archive, "_delete_rows", 1),
}


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def arm(
    step: str, happen: Callable[[], object], replace: Callable[[Any, str, Any], None] = setattr
) -> None:
    """Run the fault at that step, once."""
    owner, name, number = STEPS[step]
    original = getattr(owner, name)
    calls = []

    def replaced(*arguments: Any, **named: Any) -> Any:
        answer = original(*arguments, **named)
        calls.append(name)
        if len(calls) == number:
            happen()
        return answer

    replace(owner, name, replaced)


def borrowed_session() -> Any:
    """Return a session on the running JVM of the environment, which has a context already."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    gateway = launch_gateway()
    # PySpark has no other access to a running JVM.
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
    jvm: Any = gateway.jvm
    context = jvm.org.apache.spark.SparkContext.getOrCreate()
    jsc = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(context)
    conf = SparkConf(_jconf=jsc.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=jsc, conf=conf))


def main(step: str, lake: str, cutoff: str) -> None:
    if step in STEPS:
        arm(step, die)
    options = archives.ArchiveOptions(
        (KNOWN["dead-letters"],), int(cutoff), lake, rows_per_file=20, batch_size=10
    )
    archives.run(borrowed_session(), options, Console())


if __name__ == "__main__":
    main(*sys.argv[1:])
