"""Processes under measurement: started, watched for their CPU time, stopped."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.shared.database import Connection

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_SECONDS: Final = 45
SESSIONS: Final = """
SELECT pid
FROM pg_stat_activity
WHERE datname = current_database()
    AND backend_type = 'client backend'
    AND pid <> pg_backend_pid()
"""


@contextmanager
def running(
    *arguments: str, environment: Mapping[str, str] | None = None, log: Path | None = None,
    **more: Any,
) -> Iterator[subprocess.Popen[Any]]:  # fmt: skip
    """Run ``python …`` in the repository; terminate it at the end, kill it if it hangs."""
    output = {} if log is None else {"stdout": log.open("wb"), "stderr": subprocess.STDOUT}
    process = subprocess.Popen(  # noqa: S603 - our own modules
        [sys.executable, *arguments], cwd=ROOT, env=environment, **{**output, **more}
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until(
    condition: Callable[[], object], process: subprocess.Popen[Any], log: Path | None = None,
    *, seconds: float = 120.0, pause: float = 0.02,
) -> None:  # fmt: skip
    """Return when the condition holds; raise if the process ends or time runs out."""
    until = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            last = log.read_text(errors="replace")[-2000:] if log else ""
            raise RuntimeError(f"The process ended, or did not finish in {seconds} s. {last}")
        time.sleep(pause)


def tree(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants, none if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(*pids: int) -> float:
    """Return the CPU time of processes and their descendants, including ended ones."""
    return sum(_own_seconds(each) for pid in pids for each in tree(pid))


def session_seconds(connection: Connection) -> float:
    """Return the CPU time of the other sessions of the connection's database."""
    pids = [pid for (pid,) in connection.execute(SESSIONS).fetchall()]
    return sum(_own_seconds(each) for pid in pids for each in tree(pid))


def server_seconds(connection: Connection) -> float | None:
    """Return the CPU time of the whole server, or None if it runs elsewhere."""
    backend = tree(connection.info.backend_pid)
    if not backend or not backend[0].name().startswith("postgres"):
        return None
    return cpu_seconds(backend[0].ppid())


def _own_seconds(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        return float(sum(process.cpu_times()[:4]))
    return 0.0
