"""Every log record is one line of ``key=value``, for all values (W13, O6)."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest

from delayed_queue.logs import described, log
from tests.support.processes import ROOT

HOSTILE: Final = 'a b="c"\nevent=forged key=\\'
# As documented: plain, or quoted as in JSON.
FIELD: Final = re.compile(r'([a-z_]+)=("(?:[^"\\\n]|\\.)*"|[^\s"=]+)(?: |$)')
HELPER: Final = "delayed_queue/logs.py"
# Fields that belong to the callers, or may hold their data.
PRIVATE: Final = {"payload", "body", "headers", "arguments", "url", "text", "message", "values"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield each call of the package and of the example, with its place."""
    for folder in ("delayed_queue", "example_project"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", node


def test_the_helper_alone_writes_to_the_log_and_in_words_of_the_code() -> None:
    writing = re.compile(r"log(ger|ging)\.(debug|info|warning|error|critical|exception|log)")
    others, found = set(), 0
    for place, node in calls():
        name = ast.unparse(node.func)
        if writing.fullmatch(name):
            others.add(place.partition(":")[0])
        elif name == "log":
            level, event, *_ = node.args
            assert re.fullmatch(r"logging\.[A-Z]+|level", ast.unparse(level)), place
            assert isinstance(event, ast.Constant), place
            assert re.fullmatch(r"[a-z_]+", str(event.value)), place
            assert not {each.arg for each in node.keywords if each.arg} & PRIVATE, place
            found += 1
    # The database layer is below the helper.
    assert others == {HELPER, "delayed_queue/db/session.py"}
    assert found > 40


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
