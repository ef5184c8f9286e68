"""Run a management command, the web server or Spark, until it or its parent ends."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
import threading
from contextlib import redirect_stdout
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, Final

from django.core.management import execute_from_command_line

ANSWER: Final = "answer "
_heard: Final[SimpleQueue[bytes]] = SimpleQueue()


def _end_with_parent() -> None:
    """Pass on what the parent says, until it closes our standard input; then stop in order."""
    # Not by ``sys.stdin``: a thread that waits in there aborts the interpreter's end.
    rest = b""
    while data := os.read(sys.stdin.fileno(), 64 * 1024):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            _heard.put(line)
    # To that thread, not the process: only so is a sleeping system call of it interrupted.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _serve_web(descriptor: int) -> None:
    # Here, as below: the other processes have no use for it.
    import uvicorn

    config = uvicorn.Config("example_project.asgi:application", log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


def _serve_spark() -> None:
    """Run the commands that are heard, a JSON list a line, until an empty line comes."""
    import django

    django.setup()
    from django.db import connections

    from delayed_queue.spark.database import dsn_from_django
    from delayed_queue.spark.jobs.console import Console
    from delayed_queue.spark.session import session
    from delayed_queue.spark.settings import VARIABLE, SparkSettings

    # Before the JVM starts: executors have its environment.
    os.environ[VARIABLE] = dsn_from_django(connections["default"].settings_dict)
    # A page of its own, and parts for a cluster, are more than a demo needs.
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    settings = replace(SparkSettings(), CORES=min(4, os.cpu_count() or 1), CONF=conf)
    with session(settings, Console(), "demo") as spark:
        # Once, while the acts before still wait: what is slow the first time.
        spark.range(1).selectExpr("md5(string(id))").collect()
        while line := _heard.get():
            sys.stdout.write(f"\n{ANSWER}{json.dumps(_run(json.loads(line)))}\n")


def _run(arguments: list[str]) -> tuple[int, Any]:
    """Return a command's exit code, and its answer when it gave one."""
    said, code = io.StringIO(), 0
    with redirect_stdout(said):
        try:
            execute_from_command_line(["manage.py", "queuepipeline", *arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, json.loads(said.getvalue()) if said.getvalue() else None


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    if sys.argv[1] == "web":
        _serve_web(int(sys.argv[2]))
    elif sys.argv[1] == "spark":
        _serve_spark()
    else:
        execute_from_command_line(["manage.py", *sys.argv[1:]])
