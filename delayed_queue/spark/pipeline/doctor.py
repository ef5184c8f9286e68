"""``doctor``: what a pipeline needs, looked at one after the other, with what to do about it.

And ``bundle`` and ``main``: what ``spark-submit`` is given, the package in a file and a program.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import delayed_queue
from delayed_queue.db.sql import row_of
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.spark.pipeline.cli import (
    DONE,
    FAILED,
)
from delayed_queue.spark.pipeline.console import BINARY, Console, sentence_of, span
from delayed_queue.spark.pipeline.session import (
    Stopping,
    find_java_home,
    private_directory,
    session,
)
from delayed_queue.spark.settings import SparkSettings, is_elsewhere, tasks_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OK: Final = "ok"
WARN: Final = "warn"
FAIL: Final = "fail"
_OLDEST_JAVA: Final = 17
_OLDEST_LIBPQ: Final = 140_000
# In milliseconds: a round trip, and what NTP leaves.
_MOST_SKEW: Final = 1_000
_INSTALL: Final = "pip install 'django-delayed-queue[spark]'"
# Distribution, the oldest that works, the first that does not.
_PACKAGES: Final = (
    ("pyspark", (4, 2), (5, 0)),
    ("pyarrow", (18, 0), None),
    ("pandas", (2, 2), (3, 0)),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: what was found, and what to do about it."""

    level: str
    subject: str
    found: str
    advice: str = ""


def examine(
    settings: SparkSettings, console: Console, *, is_verbose: bool = False
) -> list[Finding]:
    """Look at everything; what rests on something that failed is left out."""
    found = [driver()]
    if found[0].level == FAIL:
        return [*found, Finding(WARN, "all else", "not checked", "Fix the above first.")]
    found += [libpq(), *packages(), java(), *jars(settings), *database()]
    if any(each.level == FAIL for each in found):
        return [*found, Finding(WARN, "executors", "not tried", "Fix the above first.")]
    return [*found, *_on_spark(settings, console, is_verbose=is_verbose)]


def lines_of(findings: list[Finding]) -> list[str]:
    """Return a line for each, and one for what to do."""
    width = max(len(each.subject) for each in findings)
    found = []
    for each in findings:
        found.append(f"{each.level:4}  {each.subject.ljust(width)}  {each.found}")
        if each.advice:
            found.append(f"      {' ' * width}  → {each.advice}")
    return found


# On this machine


def driver() -> Finding:
    """Look at psycopg and what it reaches the server with; all else needs it."""
    found = package("psycopg", (3, 2), None)
    if found.level == FAIL:
        return found
    try:
        from psycopg import pq
    except ImportError as error:
        return Finding(FAIL, "psycopg", f"{found.found}: {sentence_of(error)}")
    said = f"{found.found}, the implementation {pq.__impl__}"
    if pq.__impl__ == "python":
        advice = f"{BINARY}. This one takes about five times the CPU."
        return Finding(WARN, "psycopg", said, advice)
    return Finding(OK, "psycopg", said)


def libpq() -> Finding:
    """Look at the client library that psycopg has found."""
    from psycopg import pq

    version = pq.version()
    said = f"{version // 10_000}.{version % 10_000}"
    if version < _OLDEST_LIBPQ:
        return Finding(WARN, "libpq", said, f"{BINARY}, or install libpq 14 or newer: pipelines.")
    return Finding(OK, "libpq", said)


def packages() -> Iterator[Finding]:
    """Look at the packages of this Python."""
    yield Finding(OK, "Python", f"{platform.python_version()} ({sys.executable})")
    for name, oldest, first_wrong in _PACKAGES:
        yield package(name, oldest, first_wrong)
    if _version("adbc-driver-postgresql") is None:
        advice = f"{_INSTALL}. Without it psycopg reads, at about half the speed."
        yield Finding(WARN, "adbc-driver-postgresql", "not installed", advice)
    if _version("matplotlib") is None:
        yield Finding(WARN, "matplotlib", "not installed", f"{_INSTALL}; report draws with it.")


def package(name: str, oldest: tuple[int, int], first_wrong: tuple[int, int] | None) -> Finding:
    version = _version(name)
    wanted = f"{name}>={oldest[0]}.{oldest[1]}" + (f",<{first_wrong[0]}" if first_wrong else "")
    if version is None:
        return Finding(FAIL, name, "not installed", _INSTALL)
    numbers = _numbers(version)
    if numbers < oldest or (first_wrong is not None and numbers >= first_wrong):
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


def java() -> Finding:
    """Look for a Java that Spark can run on."""
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
    release = java_release(text)
    if release < _OLDEST_JAVA:
        return Finding(FAIL, "Java", text, "Spark 4 needs Java 17 or newer: set JAVA_HOME.")
    return Finding(OK, "Java", f"{text} ({home})")


def jars(settings: SparkSettings) -> Iterator[Finding]:
    """Look at Spark itself, which SPARK_HOME may have of another version, and at jars beside it."""
    package = find_spec("pyspark")
    if package is None or package.origin is None:  # then that is found wrong already
        return
    home = Path(os.environ.get("SPARK_HOME") or Path(package.origin).parent)
    cores = sorted((home / "jars").glob("spark-core_*.jar"))
    mine = _version("pyspark") or "?"
    theirs = cores[-1].stem.partition("-core_")[2].partition("-")[2] if cores else None
    advice = "Unset SPARK_HOME, or let it be a Spark of PySpark's own version."
    if theirs is None:
        yield Finding(FAIL, "jars", f"{home} has none of Spark", advice)
    elif _numbers(theirs) != _numbers(mine):
        yield Finding(FAIL, "jars", f"{home} is Spark {theirs}, and PySpark {mine}", advice)
    else:
        yield Finding(OK, "jars", f"Spark {theirs} ({home})")
    for each in filter(None, settings.CONF.get("spark.jars", "").split(",")):
        if "://" not in each and not Path(each.strip()).is_file():
            said = f"spark.jars: there is no file {each.strip()}"
            yield Finding(FAIL, "jars", said, "Correct the path.")


def java_release(text: str) -> int:
    """Return the release of ``openjdk version "17.0.15"``; 8 of ``"1.8.0_402"``."""
    quoted = text.split('"')[1] if text.count('"') >= 2 else ""
    parts = [each for each in quoted.replace("_", ".").replace("-", ".").split(".") if each]
    if not parts or not parts[0].isdecimal():
        return 0
    return int(parts[1]) if parts[0] == "1" and len(parts) > 1 else int(parts[0])


def database() -> Iterator[Finding]:
    """Look at the database from here: address, version, tables, and its clock."""
    try:
        server, tables, ahead = _asked()
    except DelayedQueueError as error:
        advice = "Set DELAYED_QUEUE_DSN, or use manage.py queuepipeline, which takes DATABASES."
        yield Finding(FAIL, "database", str(error), advice)
        return
    yield _tables(server, tables)
    yield clock({"this machine": ahead})


def _tables(server: str, tables: list[tuple[str, bool]]) -> Finding:
    missing = [name for name, is_there in tables if not is_there]
    if missing:
        found = f"PostgreSQL {server} without {', '.join(missing)}"
        return Finding(FAIL, "database", found, "Run manage.py migrate.")
    return Finding(OK, "database", f"PostgreSQL {server}")


def clock(ahead: dict[str, int]) -> Finding:
    """Judge by how many milliseconds clocks are ahead of the database's."""
    host, most = max(ahead.items(), key=lambda each: abs(each[1]))
    if abs(most) <= _MOST_SKEW:
        return Finding(OK, "clock", f"within {span(_MOST_SKEW / 1000)} of the database's")
    where = "ahead of" if most > 0 else "behind"
    advice = (
        "Have both set by NTP. Leases go by the database's clock; --older-than, and the dates of "
        "files, by this one."
    )
    said = f"{host} is {span(abs(most) / 1000)} {where} the database"
    return Finding(WARN, "clock", said, advice)


def _asked() -> tuple[str, list[tuple[str, bool]], int]:
    """Return the server's version, its tables, and how many ms this clock is ahead of its own."""
    from delayed_queue.spark.database import fetch, steady
    from delayed_queue.spark.store.archiving import PRESENT
    from delayed_queue.spark.store.streaming import LOOK_AROUND, AroundRow

    with steady() as connection:
        server = connection.info.parameter_status("server_version") or "?"
        rows = fetch(connection, PRESENT.text, {})
        before = time.time()
        theirs = row_of(AroundRow, fetch(connection, LOOK_AROUND, {})).now
        ahead = round((before + time.time()) * 500) - theirs
    return server.partition(" ")[0], [(name, is_there) for name, is_there in rows], ahead


# On Spark


def _on_spark(settings: SparkSettings, console: Console, *, is_verbose: bool) -> Iterator[Finding]:

    try:
        with session(settings, console, "doctor", is_verbose=is_verbose) as spark:
            yield Finding(OK, "Spark", f"{spark.version} on {_place_of(spark)}")
            rows, tasks = from_executors(spark), tasks_of(spark)
    # Whatever keeps Spark from running is the finding.
    except Exception as error:
        advice = "Once more with --verbose shows Spark's own words."
        yield Finding(FAIL, "Spark", sentence_of(error), advice)
        return
    yield from executors(rows)
    yield room(tasks, settings)


def from_executors(spark: SparkSession) -> list[dict[str, Any]]:
    """Return what each executor says of itself."""
    count = max(tasks_of(spark), 2)
    rows = spark.range(0, count, 1, count).mapInArrow(_looking, "found string").collect()
    return [json.loads(row["found"]) for row in rows]


def _looking(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    for batch in batches:
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(look())] * batch.num_rows})


def _place_of(spark: SparkSession) -> str:
    return "Spark Connect" if is_elsewhere(spark) else str(spark.sparkContext.master)


def look() -> dict[str, Any]:
    """Return what an executor's Python is, and whether the database can be reached from there."""
    answer: dict[str, Any] = {
        "host": platform.node(),
        "python": platform.python_version(),
        "delayed_queue": _own_version(),
        **{name: _version(name) for name in ("pyspark", "pyarrow", "pandas")},
    }
    try:
        answer |= {"ahead": _asked()[2], "database": None}
    # Whatever keeps an executor from the database is what was asked for.
    except Exception as error:
        answer |= {"ahead": None, "database": sentence_of(error)}
    return answer


def _own_version() -> str:
    return delayed_queue.__version__


def executors(rows: list[dict[str, Any]]) -> Iterator[Finding]:
    """Compare the executors with the driver, and say which cannot reach the database."""
    mine = look_here()
    hosts = sorted({row["host"] for row in rows})
    for name, wanted in mine.items():
        others = sorted({str(row[name]) for row in rows} - {str(wanted)})
        if others:
            is_bad = name != "python" or _numbers(others[0]) != _numbers(str(wanted))
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
    clocks = {row["host"]: row["ahead"] for row in rows if row["ahead"] is not None}
    if clocks:
        yield clock(clocks)
    if not unreached:
        yield Finding(OK, "executors", f"the database answers on {', '.join(hosts)}")


def look_here() -> dict[str, Any]:
    names = ("pyspark", "pyarrow", "pandas")
    return {
        "python": platform.python_version(),
        "delayed_queue": _own_version(),
        **{name: _version(name) for name in names},
    }


def room(tasks: int, settings: SparkSettings) -> Finding:
    """Ask the server how many connections it has left, and do the sum."""
    try:
        limits = _limits()
    except DelayedQueueError as error:
        return Finding(FAIL, "connections", str(error), "The database was there before: once more.")
    return connections(tasks, settings, limits)


def _limits() -> tuple[int, int]:
    from delayed_queue.spark.database import fetch, steady
    from delayed_queue.spark.store.streaming import LOOK_AROUND, AroundRow

    with steady() as connection:
        around = row_of(AroundRow, fetch(connection, LOOK_AROUND, {}))
    return around.most_connections, around.used_connections - 1


def connections(tasks: int, settings: SparkSettings, limits: tuple[int, int]) -> Finding:
    """Do the sum: what a command may open, against what the server has left."""
    most, used = limits
    wanted = tasks + 3  # leases and the driver's own
    sum_of = f"{wanted} of a command, {used} in use, {most} in all"
    if used + wanted > most:
        advice = "Lower --cores or --executors, or raise max_connections."
        return Finding(FAIL, "connections", sum_of, advice)
    if wanted > settings.MAX_CONNECTIONS:
        advice = f"That is more than MAX_CONNECTIONS, {settings.MAX_CONNECTIONS}: lower --cores."
        return Finding(WARN, "connections", sum_of, advice)
    return Finding(OK, "connections", sum_of)


# What a cluster is given

_PACKAGE: Final = Path(delayed_queue.__file__).parent
# What executors never import: Django's side.
_LEFT_OUT: Final = {"__pycache__", "migrations", "templates", "static", "admin", "management"}


def bundle() -> Path:
    """Write the package to a zip in a directory of this user's own; return its path.

    The name has a digest of the contents: the same sources give the same file, in one step, so
    that several may ask at once.
    """
    names = sorted(_names())
    digest = hashlib.sha256()
    for name in names:
        digest.update(f"{name}\0".encode() + (_PACKAGE.parent / name).read_bytes())
    version = delayed_queue.__version__
    path = private_directory() / f"delayed_queue-{version}-{digest.hexdigest()[:12]}.zip"
    if not path.exists():
        _write(path, names)
    return path


def _names() -> list[str]:
    found = [
        each.relative_to(_PACKAGE.parent).as_posix()
        for each in _PACKAGE.rglob("*.py")
        if not _LEFT_OUT & set(each.relative_to(_PACKAGE).parts)
    ]
    finder = _PACKAGE.parent / "pyspark_delayed_queue.py"
    return [*found, finder.name] if finder.exists() else found


def _write(path: Path, names: list[str]) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as written:
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as packed:
            for name in names:
                packed.write(_PACKAGE.parent / name, name)
        Path(written.name).chmod(0o644)
    os.replace(written.name, path)  # noqa: PTH105 - one step, over one that came first


def add_arguments(parser: ArgumentParser) -> None:
    """Take none but the common ones."""


def execute(
    options: Namespace, settings: SparkSettings, console: Console, stopping: Stopping
) -> int:
    if options.command != "doctor":
        path = str(bundle() if options.command == "bundle" else _PACKAGE / "spark" / "__main__.py")
        console.answer({"path": path}, [path])
        return DONE
    findings = examine(settings, console, is_verbose=options.verbose)
    console.answer({"findings": [asdict(each) for each in findings]}, lines_of(findings))
    return FAILED if any(each.level == FAIL for each in findings) else DONE
