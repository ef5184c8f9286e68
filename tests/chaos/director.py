"""The director: keeps the programs running and injects the scheduled faults."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

import psutil
from django.db import Error, connections

from example_project.postgres import EmbeddedPostgres
from tests.chaos.schedule import Fault
from tests.support.ledger import terminate_backends
from tests.support.programs import Program
from tests.support.proxy import Proxy
from tests.support.servers import crash

TICK: Final = 0.02


class Director:
    """Runs faults in the main thread; ``_later`` holds the faults to undo."""

    def __init__(
        self,
        workers: list[Program],
        consumers: list[Program],
        proxy: Proxy,
        server: EmbeddedPostgres,
    ) -> None:
        self._workers, self._consumers = workers, consumers
        self._proxy, self._server = proxy, server
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._started_at = time.monotonic()
        self.killed: set[int] = set()
        self.happened: Counter[str] = Counter()
        self._causes: dict[str, Callable[[Fault], None]] = {
            "kill a working process": self._kill_working,
            "kill a supervisor": self._kill_supervisor,
            "kill a consumer": self._kill_consumer,
            "stop a process and let it go on": self._stop,
            "terminate and restart a worker": self._terminate,
            "end all connections": self._end_connections,
            "cut the network": lambda fault: self._proxy.cut(),
            "refuse connections for a while": self._refuse,
            "crash the server": self._crash,
        }

    def run(self, faults: Iterable[Fault], seconds: float) -> None:
        """Run the faults, and undo the remaining ones at the end."""
        for fault in faults:
            self._wait_until(fault.at)
            self.happened[fault.name] += 1
            self._causes[fault.name](fault)
        self._wait_until(seconds)
        for _, remedy in self._later:
            remedy()
        self._later = []

    def tend(self) -> None:
        for program in (*self._workers, *self._consumers):
            program.tree()  # so that it finds its children when their parent dies
            program.tend()

    def _wait_until(self, at: float) -> None:
        pause = threading.Event()
        while (now := time.monotonic() - self._started_at) < at:
            for due, remedy in [each for each in self._later if each[0] <= now]:
                self._later.remove((due, remedy))
                remedy()
            self.tend()
            pause.wait(TICK)

    def _after(self, seconds: float, remedy: Callable[[], object]) -> None:
        self._later.append((time.monotonic() - self._started_at + seconds, remedy))

    def _kill(self, process: psutil.Process) -> None:
        self.killed.add(process.pid)
        with suppress(psutil.NoSuchProcess):
            process.kill()

    def _working(self, fault: Fault) -> psutil.Process | None:
        """Return a child of a worker, or the worker's only process."""
        tree = self._workers[fault.choice % len(self._workers)].tree()
        below = [each for each in tree if not _children(each)]
        return below[fault.choice // 7 % len(below)] if below else None

    def _kill_working(self, fault: Fault) -> None:
        process = self._working(fault)
        if process is not None:
            self._kill(process)

    def _kill_supervisor(self, fault: Fault) -> None:
        program = self._workers[fault.choice % len(self._workers)]
        self.killed |= {each.pid for each in program.tree()}
        program.process.send_signal(signal.SIGKILL)

    def _kill_consumer(self, fault: Fault) -> None:
        self._consumers[fault.choice % len(self._consumers)].process.kill()

    def _stop(self, fault: Fault) -> None:
        process = self._working(fault)
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.suspend()
            self._after(fault.length, lambda: _resume(process))

    def _terminate(self, fault: Fault) -> None:
        self._workers[fault.choice % len(self._workers)].process.terminate()

    def _end_connections(self, fault: Fault) -> None:
        with suppress(Error):
            terminate_backends()

    def _refuse(self, fault: Fault) -> None:
        self._proxy.refuse()
        self._after(fault.length, self._proxy.accept)

    def _crash(self, fault: Fault) -> None:
        connections["default"].close()
        crash(self._server)
        self._server.start()


def _children(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(process.children())
    return []


def _resume(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.resume()
