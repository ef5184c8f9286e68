"""Run a management command, or uvicorn, until it ends or the process that started it is gone."""

from __future__ import annotations

import os
import signal
import sys
import threading

from django.core.management import execute_from_command_line


def _end_with_parent() -> None:
    """Wait for the end of standard input, which the parent holds open, then stop in order."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        # To that thread, not the process: only so is a sleeping system call of it interrupted.
        signal.pthread_kill(main, signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)


def _main(arguments: list[str]) -> None:
    if arguments[0] == "uvicorn":
        # Here: nothing else of the demo needs it.
        import uvicorn

        uvicorn.main(arguments[1:])
    else:
        execute_from_command_line(["manage.py", *arguments])


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    _main(sys.argv[1:])
