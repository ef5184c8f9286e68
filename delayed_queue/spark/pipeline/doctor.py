"""``doctor``: checks what a pipeline needs, and reports what to do about each fault."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import delayed_queue
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.spark.pipeline.cli import DONE, FAILED
from delayed_queue.spark.pipeline.console import Console, sentence_of
from delayed_queue.spark.pipeline.session import Stopping, find_java_home, session
from delayed_queue.spark.settings import SparkSettings, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
_OLDEST_JAVA: Final = 17
_INSTALL: Final = "pip install 'django-delayed-queue[spark]'"
# Distribution, the oldest release that works, the first that does not.
_PACKAGES: Final = (
    ("pyspark", (4, 2), (5, 0)),
    ("pyarrow", (18, 0), None),
    ("pandas", (2, 2), (3, 0)),
    ("psycopg", (3, 2), None),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    level: str
    subject: str
    found: str
    advice: str = ""


def examine(
    settings: SparkSettings, console: Console, *, is_verbose: bool = False
) -> list[Finding]:
    """Check everything; a check that rests on something that failed is left out."""
    found = [*check_packages(), check_java(), check_database()]
    if any(each.level == FAIL for each in found):
        return [*found, Finding(WARN, "executors", "not tried", "Fix the above first.")]
    return [*found, *check_spark(settings, console, is_verbose=is_verbose)]


def lines_of(findings: list[Finding]) -> list[str]:
    """Return a line for each finding, and one for its advice."""
    width = max(len(each.subject) for each in findings)
    found = []
    for each in findings:
        found.append(f"{each.level:4}  {each.subject.ljust(width)}  {each.found}")
        if each.advice:
            found.append(f"      {' ' * width}  → {each.advice}")
    return found


def check_packages() -> Iterator[Finding]:
    """Check the packages of this Python."""
    yield Finding(OK, "Python", f"{platform.python_version()} ({sys.executable})")
    for name, oldest, first_wrong in _PACKAGES:
        yield check_package(name, oldest, first_wrong)


def check_package(
    name: str, oldest: tuple[int, int], first_wrong: tuple[int, int] | None
) -> Finding:
    version = _version(name)
    if version is None:
        return Finding(FAIL, name, "not installed", _INSTALL)
    numbers = _numbers(version)
    if numbers < oldest or (first_wrong is not None and numbers >= first_wrong):
        wanted = f"{name}>={oldest[0]}.{oldest[1]}" + (f",<{first_wrong[0]}" if first_wrong else "")
        return Finding(FAIL, name, version, f"pip install '{wanted}'")
    return Finding(OK, name, version)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, int]:
    parts = [int(each) for each in version.split(".")[:2] if each.isdecimal()]
    return (parts[0], parts[1]) if len(parts) == 2 else (0, 0)


def check_java() -> Finding:
    """Check the Java that Spark will run on."""
    try:
        home = find_java_home()
    except (DelayedQueueError, ImportError) as error:
        return Finding(FAIL, "Java", "not found", str(error))
    try:
        done = subprocess.run(  # noqa: S603 - the Java that Spark will run
            [home / "bin" / "java", "-version"],
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        advice = "Set JAVA_HOME to a Java 17 or newer."
        return Finding(FAIL, "Java", f"{home}: {type(error).__name__}", advice)
    text = (done.stderr or done.stdout).partition("\n")[0]
    if java_release(text) < _OLDEST_JAVA:
        return Finding(FAIL, "Java", text, "Spark 4 needs Java 17 or newer: set JAVA_HOME.")
    return Finding(OK, "Java", f"{text} ({home})")


def java_release(text: str) -> int:
    """Return the release of ``openjdk version "17.0.15"``; 1 up to Java 8."""
    found = re.search(r'"(\d+)', text)
    return int(found[1]) if found else 0


def check_database() -> Finding:
    """Check the connection from here, and the tables."""
    try:
        from delayed_queue.spark.database import fetch, steady
        from delayed_queue.spark.store.archiving import PRESENT

        with steady() as connection:
            server = connection.info.parameter_status("server_version") or "?"
            rows = fetch(connection, PRESENT.text, {})
    # Without libpq, psycopg cannot be imported.
    except (DelayedQueueError, ImportError) as error:
        advice = "Set DELAYED_QUEUE_DSN, or use manage.py queuepipeline, which takes DATABASES."
        return Finding(FAIL, "database", sentence_of(error), advice)
    found = f"PostgreSQL {server.partition(' ')[0]}"
    missing = [name for name, is_there in rows if not is_there]
    if missing:
        text = f"{found} without {', '.join(missing)}"
        return Finding(FAIL, "database", text, "Run manage.py migrate.")
    return Finding(OK, "database", found)


def check_spark(
    settings: SparkSettings, console: Console, *, is_verbose: bool = False
) -> Iterator[Finding]:
    """Start Spark, and compare its executors with this process."""
    try:
        with session(settings, console, "doctor", is_verbose=is_verbose) as spark:
            rows = look_from_executors(spark)
            yield Finding(OK, "Spark", spark.version)
    # The finding is the reason that keeps Spark from running.
    except Exception as error:
        advice = "Run it again with --verbose to see Spark's own words."
        yield Finding(FAIL, "Spark", sentence_of(error), advice)
        return
    yield from compare_executors(look(), rows)


def look_from_executors(spark: SparkSession) -> list[dict[str, Any]]:
    """Return the result of ``look`` on the executors."""
    count = max(tasks_of(spark), 2)
    rows = spark.range(0, count, 1, count).mapInArrow(_look_in_task, "found string").collect()
    return [json.loads(row["found"]) for row in rows]


def _look_in_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(look())] * batch.num_rows})


def look() -> dict[str, Any]:
    """Return the versions of this Python, and the result of a connection to the database."""
    found: dict[str, Any] = {
        "host": platform.node(), "python": platform.python_version(),
        "delayed_queue": delayed_queue.__version__,
        **{name: _version(name) for name, _, _ in _PACKAGES},
    }  # fmt: skip
    try:
        from delayed_queue.spark.database import steady

        steady().close()
    # The finding is the reason that keeps an executor from the database.
    except Exception as error:
        return found | {"database": sentence_of(error)}
    return found | {"database": None}


def compare_executors(here: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Report versions that differ, and executors that cannot reach the database."""
    for name in ("python", "delayed_queue", *(name for name, _, _ in _PACKAGES)):
        wanted = str(here[name])
        others = sorted({str(row[name]) for row in rows} - {wanted})
        if others:
            is_bad = name != "python" or _numbers(others[0]) != _numbers(wanted)
            found = f"{name} is {', '.join(others)} there and {wanted} here"
            advice = "Install the same on all machines; set PYSPARK_PYTHON to that Python."
            yield Finding(FAIL if is_bad else WARN, "executors", found, advice)
    unreached = {row["host"]: row["database"] for row in rows if row["database"]}
    for host, reason in sorted(unreached.items()):
        advice = (
            "Let PostgreSQL listen there (listen_addresses, pg_hba.conf), and give the executors "
            "DELAYED_QUEUE_DSN or ~/.pgpass."
        )
        yield Finding(FAIL, "executors", f"{host} cannot reach the database: {reason}", advice)
    if not unreached:
        hosts = ", ".join(sorted({row["host"] for row in rows}))
        yield Finding(OK, "executors", f"the database answers on {hosts}")


def add_arguments(parser: ArgumentParser) -> None:
    """``doctor`` takes only the common arguments."""


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    findings = examine(settings, console, is_verbose=options.verbose)
    console.answer({"findings": [asdict(each) for each in findings]}, lines_of(findings))
    return FAILED if any(each.level == FAIL for each in findings) else DONE
