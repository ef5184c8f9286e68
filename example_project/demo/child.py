"""Run a management command, the web server or Spark, until it or its parent ends."""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import sys
import threading

from django.core.management import execute_from_command_line


def _end_with_parent() -> None:
    """Stop in order when the parent ends, which closes our standard input."""
    hangup = select.poll()
    hangup.register(sys.stdin, 0)  # nothing is read: Spark's commands come by it
    hangup.poll()
    # To the thread, not the process: this interrupts its system call.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def _serve_web(descriptor: int) -> None:
    # Here, as below: the other processes do not need it.
    import uvicorn

    config = uvicorn.Config("example_project.asgi:application", log_level="warning", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


def _serve_spark() -> None:
    """Run commands of ``queuepipeline``, one a line of the input, until an empty line."""
    import django

    django.setup()
    from django.db import connections

    from delayed_queue.spark.database import dsn_from_django
    from delayed_queue.spark.pipeline.console import Console
    from delayed_queue.spark.pipeline.session import session
    from delayed_queue.spark.settings import VARIABLE, SparkSettings

    # Before the JVM starts, whose environment the executors inherit.
    os.environ[VARIABLE] = dsn_from_django(connections["default"].settings_dict)
    # Without Spark's web page, and with partitions for one machine.
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    settings = SparkSettings(MAX_CONNECTIONS=4, CONF=conf)
    with session(settings, Console(), "demo") as spark:
        # Warm up while earlier acts still wait: the first job is slow.
        spark.range(1).selectExpr("md5(string(id))").collect()
        while line := sys.stdin.readline().strip():
            _run(shlex.split(line))


def _run(arguments: list[str]) -> None:
    try:
        execute_from_command_line(["manage.py", "queuepipeline", "--format", "json", *arguments])
    except SystemExit as end:
        if end.code != 3:  # bad records were put aside
            raise


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    if sys.argv[1] == "web":
        _serve_web(int(sys.argv[2]))
    elif sys.argv[1] == "spark":
        _serve_spark()
    else:
        execute_from_command_line(["manage.py", *sys.argv[1:]])
