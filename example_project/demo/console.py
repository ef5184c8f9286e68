"""What the demo shows: lines, and on a terminal a block at the end that is redrawn in place."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import Final

from django.core.management.base import OutputWrapper

PLAIN_SECONDS: Final = 5.0
_DIM, _BOLD, _GREEN, _RED = "2", "1", "32", "31"


class Console:
    """Writes for people; warnings go to a stream of their own."""

    def __init__(self, out: OutputWrapper, err: OutputWrapper, *, colour: bool) -> None:
        self._out = out
        self._err = err
        self.is_terminal = bool(out.isatty())
        self._colour = colour and self.is_terminal
        self._drawn = 0
        self._plain_at = 0.0

    def say(self, text: str = "") -> None:
        """Write a line, above the block if one is drawn."""
        self._erase()
        self._write(f"{text}\n")

    def step(self, name: str, text: str) -> None:
        """Write a line with a name in front."""
        self.say(f"{self.dim(f'{name:<10}')} {text}")

    def warn(self, text: str) -> None:
        self._erase()
        self._err.write(text)
        self._err.flush()

    def draw(self, block: Sequence[str], plain: str) -> None:
        """Replace the block; where it cannot be redrawn, write the plain line now and then."""
        size = shutil.get_terminal_size()
        if self.is_terminal and len(block) < size.lines:
            self._erase()
            self._write("".join(f"{_cut(line, size.columns - 1)}\n" for line in block))
            self._drawn = len(block)
        elif time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + PLAIN_SECONDS
            self._write(f"{plain}\n")

    def keep(self) -> None:
        """Leave the block where it is and go on below it."""
        self._drawn = 0

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0

    def _write(self, text: str) -> None:
        self._out.write(text, _as_it_is, ending="")
        self._out.flush()

    def dim(self, text: str) -> str:
        return self._styled(text, _DIM)

    def bold(self, text: str) -> str:
        return self._styled(text, _BOLD)

    def good(self, text: str) -> str:
        return self._styled(text, _GREEN)

    def bad(self, text: str) -> str:
        return self._styled(text, _RED)

    def _styled(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def _as_it_is(text: str) -> str:
    return text


def _cut(line: str, width: int) -> str:
    """Cut a line to the width, not counting its colours: a wrapped line would not be erased."""
    shown = 0
    position = 0
    while position < len(line) and shown < width:
        if line[position] == "\x1b":
            position = line.index("m", position)
        else:
            shown += 1
        position += 1
    return line if position == len(line) else f"{line[:position]}\x1b[0m"
