"""The progress line, on a terminal and elsewhere (W13)."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import TextIO

import pytest

from delayed_queue.worker.engine.heartbeat import ProgressLine, Totals
from tests.support.processes import wait_until

SOON = 0.02


class Terminal:
    """A pseudo-terminal, and what was written to it."""

    def __init__(self, columns: int) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.set_blocking(self._master, False)
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self._seen = b""

    def text(self) -> str:
        try:
            while chunk := os.read(self._master, 65536):
                self._seen += chunk
        except OSError:
            pass
        return self._seen.decode()

    def shown(self) -> list[str]:
        """Return each state of the line."""
        return re.findall(r"\r([^\r\n]*?)\x1b\[K", self.text())


@contextmanager
def terminal(columns: int = 100) -> Iterator[Terminal]:
    made = Terminal(columns)
    with made.stream:
        yield made


def test_one_line_is_overwritten() -> None:
    totals = iter([Totals(0, 0, 0, 0), Totals(1200, 3, 1, 8)])
    last = Totals(2500, 3, 1, 0)
    with terminal() as tty:
        line = ProgressLine(lambda: next(totals, last), tty.stream, SOON)
        with line:
            wait_until(lambda: len(tty.shown()) >= 2)
        first, second = tty.shown()[:2]
        rate = r" · [\d,]+/s"
        assert re.fullmatch("1,200 done · 3 failed · 1 dead · 8 in flight" + rate, first)
        assert re.fullmatch("2,500 done · 3 failed · 1 dead · 0 in flight" + rate, second)
        # The last state stays: only it ends its line.
        assert tty.text().count("\n") == 1
        assert tty.text().endswith("\x1b[K\r\n")


def test_the_rate_is_that_of_the_time_since_the_last_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("delayed_queue.worker.engine.heartbeat.time.monotonic", lambda: now)
    totals = Totals(0, 0, 0, 0)
    line = ProgressLine(lambda: totals, StringIO())
    now, totals = 102.0, Totals(2000, 30, 10, 4)
    assert line.text().endswith(" 1,020/s")
    now = 103.0
    assert line.text().endswith(" 0/s")


def test_a_narrow_terminal_gets_what_fits() -> None:
    with terminal(columns=20) as tty:
        with ProgressLine(lambda: Totals(10**9, 0, 0, 0), tty.stream, SOON):
            wait_until(tty.shown)
        assert tty.shown()[0] == "1,000,000,000 done "


def test_a_terminal_that_is_closed_ends_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="delayed_queue")
    master, slave = os.openpty()
    stream = os.fdopen(slave, "w", encoding="utf-8")
    line = ProgressLine(lambda: Totals(1, 0, 0, 0), stream, SOON)
    with line:
        os.close(master)
        wait_until(lambda: not line.thread.is_alive())
    assert "event=progress_ended" in caplog.text
    stream.close()


def test_elsewhere_nothing_is_written_and_no_thread_started() -> None:
    stream = StringIO()
    line = ProgressLine(lambda: Totals(1, 0, 0, 0), stream, SOON)
    with line:
        assert not line.thread.is_alive()
    assert stream.getvalue() == ""
