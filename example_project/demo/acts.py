"""What every act of the demo is and leaves: figures for people and programs, and checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from example_project.demo.exceptions import Stalled
    from example_project.demo.stage import Stage

SHOWN: Final = 5


class Check(NamedTuple):
    """A statement about the run, and whether it holds."""

    name: str
    passed: bool
    statement: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an act ended: the lines of its report, the same as JSON values, and its checks."""

    rows: Sequence[tuple[str, str]]
    figures: dict[str, Any]
    checks: Sequence[Check]

    @property
    def failed(self) -> list[Check]:
        return [each for each in self.checks if not each.passed]


class Act(Protocol):
    """One thing that the demo shows."""

    @property
    def name(self) -> str: ...

    @property
    def introduction(self) -> str: ...

    def clear(self) -> None:
        """Delete what an earlier run left in the database."""

    def prepare(self, stage: Stage) -> None:
        """Open what must be there before any process of the stage is started."""

    def warm_up(self, stage: Stage) -> None:
        """Start what takes long to be up, while the acts before it still wait for things."""

    def run(self, stage: Stage) -> Outcome:
        """Run from start to end; raises DemoError when it cannot, or does not get on."""

    def left(self) -> str:
        """Say what an interrupted run leaves in the database."""


def stalled(error: Stalled) -> Outcome:
    """Return the outcome of an act that did not get to its end."""
    check = Check("came to its end", False, str(error))
    return Outcome([("stalled", str(error).splitlines()[0])], {"stalled": str(error)}, [check])


def none_of(name: str, wrong: Sequence[object], statement: str, *, and_also: bool = True) -> Check:
    """Return the check that nothing went wrong in this way; it names some of what did."""
    examples = ", ".join(map(str, wrong[:SHOWN])) + (" …" if len(wrong) > SHOWN else "")
    detail = f"{statement}; not so: {examples}" if wrong else statement
    return Check(f"{name} {len(wrong):,}", not wrong and and_also, detail)
