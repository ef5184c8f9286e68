"""Words that the glossary has replaced stay out of code, pages and documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tests.support.processes import ROOT

# The word that replaced each; where it is the name of something else, that file.
RETIRED: Final = {
    r"bury|buried|burying": "dead-letter",
    r"bites?|BITE": "batch",
    r"put(s|ting)? off|put_off|PutOff": "defer",
    r"(?<!-)in hand(?!-)": "in flight",
    r"autopsy": "crash report",
    r"is told by|are told by": "identified by",
    r"fleets?|scouts?|doz(e|es|ing)": "dynamic queues, idle scan, idle",
    r"lanes?|LANES": "consumer, queue",
    r"seats?": "slot",
    r"desks?|hub|ears?|bells?": "context, registry, listener, wake channel",
    r"low-water mark": "scan position",
    r"patience|PATIENCE": "timeout",
    r"lives? again|living": "is in use again, active",
    r"(for|of|by|to|from|with) who (is|are|was|has|[a-z]+s)": "whoever, those who",
}
# A verb of the HTTP API, as its contract has it, and what else names it.
BURY: Final = ("http/", "rest-api.md", "glossary.md", "concurrency.md", "lost-connections.md")


def texts() -> list[Path]:
    folders = (ROOT / "delayed_queue", ROOT / "docs", ROOT / "example_project")
    endings = {".py", ".md", ".html"}
    return [each for one in folders for each in one.rglob("*") if each.suffix in endings]


@pytest.mark.parametrize("retired", RETIRED, ids=list(RETIRED.values()))
def test_a_retired_word_stays_out(retired: str) -> None:
    pattern = re.compile(rf"(?<![A-Za-z])(?:{retired})(?![A-Za-z])")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line) and not is_meant(path, retired)
    ]
    assert found == [], f"say instead: {RETIRED[retired]}"


def is_meant(path: Path, retired: str) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return retired.startswith("bury") and any(each in name for each in BURY)
