"""The output of the demo: the steps of an act, then its figures and checks."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

PLAIN_SECONDS: Final = 5.0
SHOWN: Final = 5
T = TypeVar("T")


class DemoError(Exception):
    """The demo cannot continue; the text is the reason."""


class Stalled(DemoError):
    """The act makes no progress, or one of its processes has ended."""


class Row(NamedTuple):
    """A line of the report: name, figure, explanation."""

    name: str
    figure: float | str
    text: str = ""

    def __str__(self) -> str:
        figure = self.figure if isinstance(self.figure, str) else f"{self.figure:>7,.0f}"
        return f"{self.name:<14} {figure}  {self.text}".rstrip()


class Check(NamedTuple):
    """A property of the run: its name, whether it holds, the numbers, and what it proves."""

    name: str
    passed: bool
    statement: str
    proves: str = ""


class Outcome(NamedTuple):
    """The result of an act."""

    rows: Sequence[Row]
    checks: Sequence[Check]

    @property
    def failed(self) -> list[Check]:
        return [each for each in self.checks if not each.passed]

    def as_json(self) -> dict[str, Any]:
        figures = {each.name.replace(" ", "_"): each.figure for each in self.rows}
        checks = [each._asdict() for each in self.checks]
        return {"passed": not self.failed, **figures, "checks": checks}


def none_of(
    name: str, wrong: Iterable[object], statement: str, *, and_also: bool = True, proves: str = ""
) -> Check:
    """Check that ``wrong`` is empty; a failed check shows some of its items."""
    found = sorted(map(str, wrong))
    if found:
        examples = ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
        statement = f"{statement}; {len(found):,} wrong: {examples}"
    return Check(name, not found and and_also, statement, proves)


def repeated(names: Iterable[T]) -> list[T]:
    """Return the names that occur more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def stopped(codes: Sequence[int]) -> Check:
    """Return the check that all processes stopped in order."""
    # SIGTERM itself ends a worker that was still starting, and held nothing yet.
    well = bool(codes) and all(each in (0, -signal.SIGTERM) for each in codes)
    return Check(
        "processes stopped", well, f"exit codes after SIGTERM: {', '.join(map(str, codes))}"
    )


class Console:
    """Writes lines; on a terminal it redraws the last one during a wait."""

    def __init__(self, out: OutputWrapper, err: OutputWrapper, style: Style) -> None:
        self._out, self._err, self.style = out, err, style
        self._is_terminal = bool(out.isatty())
        self._said_at = time.monotonic()

    def say(self, text: str = "", ending: str = "\n") -> None:
        erased = "\r\x1b[K" if self._is_terminal else ""
        self._out.write(erased + text + ending, str, "")
        self._out.flush()
        self._said_at = time.monotonic()

    def step(self, name: str, text: str) -> None:
        """Write a line with a name in front."""
        self.say(f"  {name:<10} {text}")

    def warn(self, text: str) -> None:
        self.say(ending="")
        self._err.write(text)
        self._err.flush()

    def progress(self, text: str) -> None:
        """Redraw the last line; in a file, write it if the last output is some seconds old."""
        if self._is_terminal:
            self.say(f"  {text}"[: shutil.get_terminal_size().columns - 1], ending="")
        elif time.monotonic() - self._said_at > PLAIN_SECONDS:
            self.say(f"  {text}")
