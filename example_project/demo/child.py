"""Run a management command, the web server or the pipeline's desk, until it or its parent ends."""

from __future__ import annotations

import os
import signal
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
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        # To that thread, not the process: only so is a sleeping system call of it interrupted.
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def _main(arguments: list[str]) -> None:
    if arguments[0] == "web":
        from example_project.demo import webserver

        webserver.serve(int(arguments[1]))
    elif arguments[0] == "pipeline":
        from example_project.demo.pipeline import desk

        desk.serve(_heard.get)
    else:
        execute_from_command_line(["manage.py", *arguments])


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    _main(sys.argv[1:])
