"""The documentation as data: pages, fenced blocks, tables, headings and links."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from django.core.management.base import BaseCommand

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the number of its first line."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def options_of(command: BaseCommand) -> set[str]:
    """Return the options of its help, each by its last name."""
    help_ = command.create_parser("manage.py", "command").format_help()
    heads = re.findall(r"^ {2}(-.+?)(?: {2,}|$)", help_, re.MULTILINE)
    return {re.findall(r"(?:^|, )(--?[\w-]+)", head)[-1] for head in heads}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def pages() -> list[Path]:
    """Return every page of the documentation, including those beside ``docs/``."""
    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    beside = [ROOT / name for name in names]
    return beside + sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts)


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the page's fenced blocks of those languages, in order."""
    text = read(page)
    found = [
        Block(page, text.count("\n", 0, match.start(3)) + 1, match[2], match[3])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block.language in languages]


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return FENCE.sub("", read(page))


def tables(page: Path, *header: str) -> list[list[list[str]]]:
    """Return the rows of each table under that header, cell by cell."""
    wanted = list(header)
    found: list[list[list[str]]] = []
    rows: list[list[str]] | None = None
    for line in prose(page).splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells == wanted:
            rows = []
            found.append(rows)
        elif not cells:
            rows = None
        elif rows is not None and not set(cells[0]) <= set("-:"):
            rows.append(cells)
    return found


def table(page: Path, *header: str) -> list[list[str]]:
    """Return the rows of the one table under that header."""
    (rows,) = tables(page, *header)
    return rows


def code(cell: str) -> str:
    """Return the text in the back-ticks of a cell that is only code."""
    match = INLINE_CODE.fullmatch(cell)
    assert match is not None, f"not inline code: {cell}"
    return match[1]


def headings(page: Path) -> list[str]:
    return re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of the page's headings."""
    found: set[str] = set()
    seen: Counter[str] = Counter()
    for heading in headings(page):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(page: Path) -> list[str]:
    """Return the targets of the page's links and images."""
    return re.findall(r"\]\(([^)\s]+)\)", INLINE_CODE.sub("", prose(page)))
