"""The map from each line of the contract to its tests. ``make map`` writes it.

A test names a line in its name (``test_q16_…``), in a docstring or in a comment (``# Q16``, ``G2 to
G4``). Authors write the lines and their promises in ``docs/internals/coverage.md``; this module
writes the columns of tests.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/internals/coverage.md"
# Tests with such a word in their path force an order of events, or inject faults.
HARSH: Final = {"chaos", "faults", "kills", "races"}

_LETTERS: Final = "BCGJNOPQRSTW"
_RANGE: Final = re.compile(rf"(?<!%)\b([{_LETTERS}])(\d{{1,2}})(?: to \1?(\d{{1,2}}))?\b")
_NAME: Final = re.compile(rf"def test_((?:[{_LETTERS.lower()}]\d{{1,2}}_(?:and_|to_)?)+)")
_ROW: Final = re.compile(rf"^\| ([{_LETTERS}]\d{{1,2}}) \| ([^|]+) \| ")


def named_lines(source: str) -> Iterator[str]:
    """Yield the contract lines that the source of a test file names."""
    for letter, first, last in _RANGE.findall(source):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letter}{number}"
    for names in _NAME.findall(source):
        yield from re.findall(r"[A-Z]\d+", names.upper())


def files_by_line() -> Mapping[str, set[str]]:
    """Return the test files of each line, as paths below ``tests``."""
    found = defaultdict(set)
    for path in (ROOT / "tests").rglob("*.py"):
        if path.name.startswith("test_") or "chaos" in path.parts:
            for line in named_lines(path.read_text()):
                found[line].add(path.relative_to(ROOT / "tests").as_posix())
    return found


def written_page() -> str:
    """Return the page with new columns of tests."""
    files = files_by_line()
    return "\n".join(_written(row, files) for row in PAGE.read_text().split("\n"))


def promised_lines() -> list[str]:
    """Return the contract lines of the page, in its order."""
    return [match[1] for row in PAGE.read_text().split("\n") if (match := _ROW.match(row))]


def _written(row: str, files: Mapping[str, set[str]]) -> str:
    if not (match := _ROW.match(row)):
        return row
    harsh = {path for path in files[match[1]] if HARSH.intersection(re.split(r"[/_.]", path))}
    columns = [_listed(files[match[1]] - harsh), _listed(harsh)]
    return f"| {match[1]} | {match[2]} | {columns[0]} | {columns[1]} |"


def _listed(paths: set[str]) -> str:
    return ", ".join(f"`{each.removesuffix('.py')}`" for each in sorted(paths))


if __name__ == "__main__":
    PAGE.write_text(written_page())
