"""The outcome of acts as text for people and as JSON for programs."""

from __future__ import annotations

from typing import Any

from example_project.demo.acts import Outcome
from example_project.demo.console import Console


def as_text(name: str, outcome: Outcome, console: Console) -> None:
    """Say the report of an act and its checks."""
    console.say(console.bold(f"REPORT of the act {name}"))
    for row, text in outcome.rows:
        console.say(f"  {row:<15} {text}")
    console.say()
    console.say(console.bold("CHECKED"))
    width = max(len(each.name) for each in outcome.checks)
    for each in outcome.checks:
        mark = console.good("ok  ") if each.passed else console.bad("FAIL")
        console.say(f"  {mark} {each.name:<{width}}  {console.dim(each.statement)}")
    console.say()


def as_json(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """Return the reports as JSON values, by act."""
    return {
        "passed": not any(each.failed for each in outcomes.values()),
        "acts": {name: _as_json(each) for name, each in outcomes.items()},
    }


def _as_json(outcome: Outcome) -> dict[str, Any]:
    checks = [each._asdict() for each in outcome.checks]
    return {"passed": not outcome.failed, **outcome.figures, "checks": checks}
