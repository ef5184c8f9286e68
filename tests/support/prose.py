"""Odd English in comments, docstrings and pages: ``python -m tests.support.prose [PATH …]``.

Without a path it prints the number of odd phrases per folder, with paths each phrase in them. The
figures of docs/architecture.md hold the numbers; they only fall.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDERS: Final = ("delayed_queue", "docs", "example_project", "benchmarks", "tests")
_OPENINGS: Final = (
    "Of|Whom?|What|Whose|How (?:many|much|often|long|far|soon)|(?:For|After|Until) how long"
    "|So (?:many|much|long)|Whether|Whatever|Whoever|From which|In which"
)
ODD: Final = {
    "a statement that opens like a question": re.compile(
        rf"(?:^|[.:;!] )(?:{_OPENINGS}) [^.?!]*(?:[.!:;]|$)"
    ),
    "an actor without a name": re.compile(r"(?i)\b(?:nobody|somebody|whoever|anybody|everybody)\b"),
    "an amount without a number": re.compile(r"(?i)\bso (?:many|much|long|few)\b"),
    "software that talks": re.compile(
        r"(?i)\b(?:tells?|told|says|said|asks|asked|hears|heard|believed?|kn(?:ows|own) of)\b"
    ),
    "a circumlocution": re.compile(
        r"(?i)\b(?:to be had|is to be|are to be|what there is|goes on|go on|whatever)\b"
    ),
}


def files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.suffix in {".py", ".md"})


def phrases(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind of each odd phrase of a file, and its context."""
    for text in _page(path) if path.suffix == ".md" else _module(path):
        for kind, pattern in ODD.items():
            for match in pattern.finditer(text):
                yield kind, text[max(0, match.start() - 30) : match.end() + 40]


def _page(path: Path) -> Iterator[str]:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    for each in re.split(r"\n\s*\n|\n(?=[-|#*]|\d\. )", re.sub(r"`[^`]*`", "x", text)):
        yield " ".join(each.split())


def _module(path: Path) -> Iterator[str]:
    """Yield each block of comments, and each paragraph of the docstrings."""
    source = path.read_text(encoding="utf-8")
    blocks: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not re.match(r"# (noqa|type:|fmt:)", token.string):
            line = token.start[0]
            block = blocks.pop(line - 1, [])
            blocks[line] = [*block, token.string.lstrip("# ")]
    yield from (" ".join(block) for block in blocks.values())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and (docstring := ast.get_docstring(node)):
            for each in re.sub(r"``[^`]*``", "x", docstring).split("\n\n"):
                yield " ".join(each.split())


def count(folder: str) -> int:
    """Return the number of odd phrases below a folder of the repository."""
    return sum(1 for path in files(ROOT / folder) for _ in phrases(path))


def main() -> None:
    if len(sys.argv) == 1:
        found: Counter[str] = Counter()
        for folder in FOLDERS:
            for path in files(ROOT / folder):
                found[path.parent.relative_to(ROOT).as_posix()] += len(list(phrases(path)))
        print("\n".join(f"{number:5} {name}" for name, number in found.most_common()))  # noqa: T201
    for argument in sys.argv[1:]:
        path = Path(argument)
        for each in [path] if path.is_file() else files(path):
            for kind, text in phrases(each):
                print(f"{each}: {kind}: {text}")  # noqa: T201


if __name__ == "__main__":
    main()
