"""What an act leaves: figures, lines of a report, and checks of what happened."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

SHOWN: Final = 5
T = TypeVar("T")


class Check(NamedTuple):
    """A statement about the run, and whether it holds."""

    name: str
    passed: bool
    statement: str


def none_of(name: str, wrong: Iterable[object], statement: str, *, and_also: bool = True) -> Check:
    """Return the check that nothing went wrong in this way; it names some of what did."""
    found = sorted(map(str, wrong))
    if found:
        examples = ", ".join(found[:SHOWN]) + (" …" if len(found) > SHOWN else "")
        statement = f"{statement}; not so: {examples}"
    return Check(f"{name} {len(found):,}", not found and and_also, statement)


def repeated(names: Iterable[T]) -> list[T]:
    """Return those that come more than once."""
    return [name for name, times in Counter(names).items() if times > 1]


def stopped(codes: Sequence[int]) -> Check:
    """Return the check that all processes ended well."""
    # By the signal itself: a worker that was still starting up, and held nothing yet.
    well = bool(codes) and all(each in (0, -signal.SIGTERM) for each in codes)
    said = f"on SIGTERM, with exit codes {', '.join(map(str, codes))}"
    return Check("processes stopped", well, said)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an act: figures, lines for people that name some of them, and checks."""

    figures: dict[str, Any]
    rows: Sequence[tuple[str, str]]
    checks: Sequence[Check]

    @property
    def failed(self) -> list[Check]:
        return [each for each in self.checks if not each.passed]

    def as_json(self) -> dict[str, Any]:
        checks = [each._asdict() for each in self.checks]
        return {"passed": not self.failed, **self.figures, "checks": checks}
