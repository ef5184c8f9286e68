"""How a command starts its session and is stopped: as settings say, quietly."""

from __future__ import annotations

import os
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from delayed_queue.exceptions import InvalidConfiguration, ResourceUnavailable
from delayed_queue.spark.jobs.console import Console
from delayed_queue.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    from delayed_queue.spark.session import build_session, register

    running = SparkSession.getActiveSession()
    if running is not None:
        yield register(running)
        return
    master = master_of(settings)
    console.progress(f"starting Spark on {master} …")
    conf: Mapping[str, str] = conf_of(settings, master, is_verbose=is_verbose)
    named = {key.replace(".", "__"): value for key, value in conf.items()}
    with nullcontext() if is_verbose or is_submitted() else _without_greetings():
        spark = build_session(f"delayed_queue {name}", master, **named)
    console.progress(f"Spark {spark.version} is ready")
    try:
        yield spark
    finally:
        with suppress(Py4JError, OSError):  # a JVM that is gone has stopped too
            spark.stop()
