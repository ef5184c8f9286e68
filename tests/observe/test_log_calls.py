"""Every log record is one line of ``key=value``, for all values (W13, O6)."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest

from delayed_queue.logs import described, log
from tests.support.processes import ROOT

HOSTILE: Final = 'a b="c"\nevent=forged key=\\'
# As documented: plain, or quoted as in JSON.
FIELD: Final = re.compile(r'([a-z_]+)=("(?:[^"\\\n]|\\.)*"|[^\s"=]+)(?: |$)')
HELPER: Final = "delayed_queue/logs.py"
# Fields that belong to the callers, or may hold their data.
PRIVATE: Final = {"payload", "body", "headers", "arguments", "url", "text", "message", "values"}


class Call(NamedTuple):
    place: str
    node: ast.Call

    @property
    def name(self) -> str:
        return ast.unparse(self.node.func)


def calls() -> Iterator[Call]:
    for folder in ("delayed_queue", "example_project"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield Call(f"{path.relative_to(ROOT)}:{node.lineno}", node)


CALLS: Final = list(calls())
LOGGED: Final = [each for each in CALLS if each.name == "log"]


def test_the_calls_are_found() -> None:
    assert len(LOGGED) > 40


def test_nothing_writes_to_the_log_but_the_helper() -> None:
    writing = re.compile(r"log(ger|ging)\.(debug|info|warning|error|critical|exception|log)")
    others = [each.place for each in CALLS if writing.fullmatch(each.name)]
    # The database layer is below the helper.
    below = "delayed_queue/db/session.py"
    assert {place.partition(":")[0] for place in others} == {HELPER, below}


@pytest.mark.parametrize("call", LOGGED, ids=lambda call: call.place)
def test_an_event_and_its_fields_are_words_of_the_code(call: Call) -> None:
    level, event, *_ = call.node.args
    assert re.fullmatch(r"logging\.[A-Z]+|level", ast.unparse(level))
    assert isinstance(event, ast.Constant)
    assert re.fullmatch(r"[a-z_]+", str(event.value))
    names = {each.arg for each in call.node.keywords if each.arg is not None}
    assert not names & PRIVATE


@pytest.mark.parametrize("value", [HOSTILE, "", "plain", 7, None, OSError("a\nb")])
def test_a_line_is_read_back_as_it_was_meant(caplog: pytest.LogCaptureFixture, value: Any) -> None:
    with caplog.at_level(logging.INFO, logger="delayed_queue"):
        log(logging.INFO, "told", queue=value, key="k")
    [record] = caplog.records
    line = record.getMessage()
    fields = FIELD.findall(line)
    assert "".join(f"{key}={written} " for key, written in fields).rstrip() == line
    assert [key for key, _ in fields] == ["event", "queue", "key"]
    told: Any = record
    assert (told.event, told.fields) == ("told", {"queue": value, "key": "k"})
    assert record.module == "test_log_calls"  # the caller's place, not the helper's


def test_an_error_of_several_lines_is_one_value(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError('connection failed: "x"\n\tIs the server running?')
    assert described(error) == 'OSError: connection failed: "x"'
    with caplog.at_level(logging.ERROR, logger="delayed_queue"):
        log(logging.ERROR, "lost", error=described(error))
    assert caplog.records[0].getMessage() == r'event=lost error="OSError: connection failed: \"x\""'
