"""Run a management command, the web server or Spark, until it or its parent ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Final

from django.core.management import execute_from_command_line

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
    import django

    django.setup()
    from example_project.demo.pipeline import serve

    serve(_heard.get)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    if sys.argv[1] == "web":
        _serve_web(int(sys.argv[2]))
    elif sys.argv[1] == "spark":
        _serve_spark()
    else:
        execute_from_command_line(["manage.py", *sys.argv[1:]])
