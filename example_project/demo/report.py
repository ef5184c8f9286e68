"""What the demo says: steps while an act runs; then its figures, and checks of what happened."""

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
    """The demo cannot go on; the text says why in a sentence or two."""


class Stalled(DemoError):
    """The act does not get on: nothing moves, or a process of it has ended."""


class Row(NamedTuple):
    """A line of the report: a figure, and what of."""

    name: str
    figure: float | str
    text: str = ""

    def __str__(self) -> str:
        figure = self.figure if isinstance(self.figure, str) else f"{self.figure:>7,.0f}"
        return f"{self.name:<14} {figure}  {self.text}".rstrip()


class Check(NamedTuple):
    """A statement about the run, whether it holds, and which promise of the designs it proves."""

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
    """Check that nothing went wrong in this way; the check names some of what did."""
    found = sorted(map(str, wrong))
    if found:
        examples = ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
        statement = f"{statement}; not so: {examples}"
    return Check(f"{name} {len(found):,}", not found and and_also, statement, proves)


def repeated(names: Iterable[T]) -> list[T]:
    """Return those that come more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def stopped(codes: Sequence[int]) -> Check:
    """Return the check that all processes ended well."""
    # By the signal itself: a worker that was still starting up, and held nothing yet.
    well = bool(codes) and all(each in (0, -signal.SIGTERM) for each in codes)
    said = f"on SIGTERM, with exit codes {', '.join(map(str, codes))}"
    return Check("processes stopped", well, said)


class Console:
    """Writes lines; on a terminal the last one is redrawn while something is waited for."""

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
        """Redraw the last line; where it cannot be, say it when nothing was said for a while."""
        if self._is_terminal:
            self.say(f"  {text}"[: shutil.get_terminal_size().columns - 1], ending="")
        elif time.monotonic() - self._said_at > PLAIN_SECONDS:
            self.say(f"  {text}")
