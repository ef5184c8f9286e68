"""Words that the glossary has replaced stay out of code, pages and documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import documents
from tests.support.processes import ROOT

# The replacement of each word, and the files in which it names something else.
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
# A verb of the HTTP API, as its contract has it, and other names of it.
BURY: Final = (
    "http/",
    "rest-api.md",
    "rest-topics.md",
    "glossary.md",
    "internals/concurrency",
    "lost-connections.md",
)


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
    assert found == [], f"use instead: {RETIRED[retired]}"


def is_meant(path: Path, retired: str) -> bool:
    name = path.relative_to(ROOT).as_posix()
    return retired.startswith("bury") and any(each in name for each in BURY)


# In users' texts: strings of code, pages of the admin. The test of the guides is below.
PLAIN: Final = {
    "start": r"(?:^|[.:;!] |\n\s*)(?:Of|Who|What|How many|So many) [^.?!:]*(?:[.!:]|$)",
    "actor": r"(?i)\b(?:told of|asked of|is told|are told|nobody|somebody|whoever)\b",
    "letter": r"(?i)(?<!dead )(?<!dead-)\bletters?\b(?!\()",
    "look": r"(?i)\blook(?:s|ed|ing)? (?:at|for|again)\b",
}
# SQL, and letters of the alphabet.
NO_PROSE: Final = re.compile(
    r"\b(?:SELECT|MATERIALIZED|DELETE FROM|RETURNING)\b|letters, digits|ASCII letters"
)


def shown(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a module without docstrings, or the lines of a template."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".html":
        yield from enumerate(source.splitlines(), 1)
        return
    module = ast.parse(source)
    hidden = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if isinstance(node, ast.JoinedStr):
            hidden |= {id(part) for part in node.values}
            parts = (each.value if isinstance(each, ast.Constant) else "…" for each in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif id(node) not in hidden and isinstance(getattr(node, "value", None), str):
            yield node.lineno, node.value  # type: ignore[attr-defined]


@pytest.mark.parametrize("rule", PLAIN)
def test_what_users_read_is_plain_english(rule: str) -> None:
    files = (ROOT / "delayed_queue").rglob("*")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {' '.join(text.split())[:150]}"
        for path in files
        if path.suffix in {".py", ".html"}
        for number, text in shown(path)
        if " " in text and re.search(PLAIN[rule], text) and not NO_PROSE.search(text)
    ]
    assert found == []


@pytest.mark.parametrize("page", documents.pages(), ids=documents.name_of)
def test_a_guide_is_in_plain_english(page: Path) -> None:
    is_first = page.stem in {"README", "index", "quickstart", "how-do-i"}
    if not is_first and page.parent.name != "guides":
        return
    text = documents.INLINE_CODE.sub("`x`", documents.prose(page))
    paragraphs = re.split(r"\n\s*\n|\n(?=[-|#*]|\d\. )", text)
    found = [
        " ".join(each.split())[:150]
        for each in paragraphs
        for rule in PLAIN.values()
        if re.search(rule, " ".join(each.split()))
    ]
    assert found == []
