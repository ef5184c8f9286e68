"""How much memory the processes of Spark have at most."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import psutil

EACH: Final = 0.2
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"


class Memory:
    """Watches this program for its largest resident sizes, in MiB.

    ``driver`` is this process and its JVM; ``executor`` the largest one with its Python workers;
    ``worker`` the largest Python worker. Pages that processes share count in each of them.
    """

    def __init__(self) -> None:
        self.driver = self.executor = self.worker = 0
        self._pool = ThreadPoolExecutor(1)
        self._is_over = threading.Event()

    def __enter__(self) -> Memory:
        self._pool.submit(self._watch)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._is_over.set()
        self._pool.shutdown()

    def _watch(self) -> None:
        while not self._is_over.wait(EACH):
            self._look()

    def _look(self) -> None:
        me = psutil.Process()
        driver = _size(me)
        for child in me.children(recursive=True):
            with suppress(psutil.Error):
                if _EXECUTOR in " ".join(child.cmdline()):
                    self.executor = max(self.executor, _with_workers(child))
                elif "java" in child.name() and child.ppid() == me.pid:
                    driver += _size(child)
                elif "python" in child.name():
                    self.worker = max(self.worker, _size(child))
        self.driver = max(self.driver, driver)


def _with_workers(executor: psutil.Process) -> int:
    return sum(map(_size, [executor, *executor.children(recursive=True)]))


def _size(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss >> 20
    except psutil.Error:
        return 0
