"""The progress line on a terminal (W13)."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from delayed_queue.worker import Counts
from delayed_queue.worker.process.health import HealthReport, HealthReporter, ProgressLine
from tests.support.processes import wait_until


@contextmanager
def terminal(columns: int = 100) -> Iterator[tuple[int, TextIO]]:
    """Yield both ends of a pseudo-terminal."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        yield master, stream
        os.close(master)


def test_one_line_is_overwritten_with_the_rate_since_the_last(monkeypatch):
    now, counts = 100.0, Counts()
    monkeypatch.setattr("delayed_queue.worker.process.health.time.monotonic", lambda: now)
    with terminal() as (master, stream):
        line = ProgressLine(lambda: counts, stream)
        now, counts = 102.0, Counts(done=2000, failed=30, dead=10)
        line.write(8)
        now = 103.0
        line.write(0, "\n")
        with os.fdopen(os.dup(master), encoding="utf-8", newline="\n") as reading:
            text = reading.readline()
    assert text == (
        "\r2,000 done · 30 failed · 10 dead · 8 in flight · 1,020/s\x1b[K\r"
        "\r2,000 done · 30 failed · 10 dead · 0 in flight · 0/s\x1b[K\r\n"
    )


def test_a_worker_writes_it_until_its_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    reports: list[int] = []

    def report() -> HealthReport:
        reports.append(1)
        return HealthReport("w-1", True, ())

    master, slave = os.openpty()
    stream = os.fdopen(slave, "w", encoding="utf-8")
    monkeypatch.setattr("sys.stderr", stream)
    with stream, HealthReporter(report, Counts):
        assert "\r0 done · 0 failed" in os.read(master, 4096).decode()
        os.close(master)
        written = len(reports)
        wait_until(lambda: len(reports) > written)
