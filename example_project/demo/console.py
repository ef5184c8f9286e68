"""Lines for people, and for how long they wait."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Final

from django.core.management.base import OutputWrapper

PLAIN_SECONDS: Final = 5.0
BOLD, DIM, RED, GREEN = 1, 2, 31, 32


class DemoError(Exception):
    """The demo cannot go on; the text says why in a sentence or two."""


class Stalled(DemoError):
    """The act does not get on: nothing moves, or a process of it has ended."""


class Patience:
    """Runs out when what is seen stays the same for so many seconds, however slow the machine."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._seen, self._changed_at = "", clock()

    def see(self, seen: str) -> None:
        """Take note of where things stand; raise Stalled when nothing has moved for too long."""
        if seen != self._seen:
            self._seen, self._changed_at = seen, self._clock()
        elif self._clock() - self._changed_at > self._seconds:
            raise Stalled(f"No progress for {self._seconds:.0f} s: {seen}.")


class Console:
    """Writes lines; on a terminal the last one is redrawn while something is waited for."""

    def __init__(self, out: OutputWrapper, err: OutputWrapper, *, colour: bool) -> None:
        self._out, self._err = out, err
        self._is_terminal = bool(out.isatty())
        self._colour = colour and self._is_terminal
        self._said_at = time.monotonic()

    def say(self, text: str = "", ending: str = "\n") -> None:
        erased = "\r\x1b[K" if self._is_terminal else ""
        self._out.write(erased + text + ending, str, "")
        self._out.flush()
        self._said_at = time.monotonic()

    def step(self, name: str, text: str) -> None:
        """Write a line with a name in front."""
        self.say(f"  {self.styled(f'{name:<10}', DIM)} {text}")

    def warn(self, text: str) -> None:
        self.erase()
        self._err.write(text)
        self._err.flush()

    def progress(self, text: str) -> None:
        """Redraw the last line; where it cannot be, say it when nothing was said for a while."""
        if self._is_terminal:
            self.say(f"  {text}"[: shutil.get_terminal_size().columns - 1], ending="")
        elif time.monotonic() - self._said_at > PLAIN_SECONDS:
            self.say(f"  {text}")

    def erase(self) -> None:
        self.say(ending="")

    def styled(self, text: str, code: int) -> str:
        """Return the text in that style of ANSI terminals, where there is one."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text
