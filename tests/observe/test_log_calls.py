"""Every line that is logged: one line of ``key=value``, whatever the values are (W13)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayed_queue.observe.logs import described, quoted
from tests.support.processes import ROOT

LEVELS: Final = {"debug", "info", "warning", "error", "critical", "exception"}
HOSTILE: Final = 'a b="c"\nevent=forged key=\\'
# As the guide has it: plain, or quoted as in JSON.
FIELD: Final = re.compile(r'([a-z_]+)=("(?:[^"\\\n]|\\.)*"|[^\s"=]+)(?: |$)')

# Calls whose answer is plain or quoted; what else stands in a line must be plain by itself.
QUOTING: Final = {"quoted", "described", "_name", "_name_of", "len"}
# Numbers, ids, and words of the package's own; no text of callers, operators or errors.
PLAIN: Final = {
    # numbers
    "self._stuck", "child.index", "child.pid", "code", "count", "begun.id", "endpoint.id",
    "tally.accepted", "tally.duplicates", "tally.parked", "template.version",
    "each.attempt", "envelope.attempt",
    # ids and hashes
    "each.lease_id", "self.config_hash", "report.superseded_by",
    # words that the code chooses among
    "problem.code", "reason", "result.failure", "self._name", "template.channel",
    # made plain before: names of hosts as the url parser lets them through, and quoted above
    "state.name", "name", "listed",
}  # fmt: skip


class Call(NamedTuple):
    place: str
    format: str
    arguments: list[ast.expr]


def calls() -> Iterator[Call]:
    for folder in ("delayed_queue", "example_project"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield from calls_of(path)


def calls_of(path: Path) -> Iterator[Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="logger"), attr=level),
                args=[ast.Constant(value=str(text)), *arguments],
            ) if level in LEVELS:
                yield Call(f"{path.relative_to(ROOT)}:{node.lineno}", text, arguments)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level)):
                assert level not in LEVELS, f"{path}:{node.lineno}: not a format"


def value_of(argument: ast.expr) -> str:
    """Return what could stand in the line for it, at worst."""
    text = ast.unparse(argument)
    if re.fullmatch(r"type\(\w+\)\.__(qual)?name__", text) or text in PLAIN:
        return "plain"
    match argument:
        case ast.Call(func=ast.Name(id=name)) if name in QUOTING:
            return quoted(HOSTILE)
    return HOSTILE


def line_of(call: Call) -> str:
    values = iter(call.arguments)
    # A traceback may follow on lines of its own.
    head = call.format.partition("\n")[0]
    return re.sub(r"%(s|\.\d+f)", lambda m: value(next(values), m[1]), head)


def value(argument: ast.expr, conversion: str) -> str:
    return value_of(argument) if conversion == "s" else "1.5"


CALLS: Final = list(calls())


def test_the_calls_are_found() -> None:
    assert len(CALLS) > 40


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.place)
def test_a_line_is_read_back_as_it_was_meant(call: Call) -> None:
    line = line_of(call)
    fields = FIELD.findall(line)
    assert "".join(f"{key}={written} " for key, written in fields).rstrip() == line
    assert fields[0][0] == "event"
    assert [key for key, _ in fields] == re.findall(r"([a-z_]+)=", call.format.partition("\n")[0])


def test_an_error_of_several_lines_is_one_value() -> None:
    error = OSError('connection failed: "x"\n\tIs the server running?')
    assert described(error) == r'"OSError: connection failed: \"x\""'
    assert FIELD.fullmatch(f"error={described(error)}")
