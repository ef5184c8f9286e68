"""Figures of the house: ``make house`` prints them, docs/architecture.md states them.

Rooms are what stands at the package's top; the chain is the longest one of imports that happen
when modules are loaded; a queue-only project has ``delayed_queue`` alone in INSTALLED_APPS.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "delayed_queue"
WINGS: Final = ("http", "notifications", "spark", "tasks")
# Fewer equal lines than these are a manner of speaking.
REPEATED: Final = 6
# No rooms of code: what Django looks for beside it.
_DATA: Final = {"locale", "static", "templates", "__pycache__"}

_QUEUE_ONLY: Final = """
import sys, django
from django.conf import settings
settings.configure(INSTALLED_APPS=["delayed_queue"], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "none"}})
django.setup()
from django.apps import apps
from delayed_queue import DelayedQueue
DelayedQueue("a")
names = [name for name in sys.modules if name.partition(".")[0] == "delayed_queue"]
print(len({each._meta.db_table for each in apps.get_models()}), len(names))
"""


def modules() -> dict[str, Path]:
    """Return the package's modules by name, without migrations."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "migrations" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def rooms() -> list[str]:
    return sorted(
        path.stem
        for path in PACKAGE.iterdir()
        if path.name not in _DATA and path.stem != "__init__" and (path.is_dir() or _is_code(path))
    )


def _is_code(path: Path) -> bool:
    return path.suffix == ".py"


def loaded_by(path: Path) -> set[str]:
    """Return the names of ours that a module imports when it is loaded."""
    return {
        name
        for node in _statements(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("delayed_queue")
        for name in (f"{node.module}.{each.name}" for each in node.names)
    }


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what runs at import: nothing of functions, nothing for type checkers."""
    for node in body:
        yield node
        if (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ) or isinstance(node, ast.Try | ast.With):
            yield from _statements(node.body)


def longest_chain() -> list[str]:
    """Return the longest chain of modules each of which loads the next."""
    paths = modules()

    @cache
    def chain(name: str) -> tuple[str, ...]:
        nexts = {
            each if each in paths else each.rpartition(".")[0] for each in loaded_by(paths[name])
        }
        longest: tuple[str, ...] = ()
        for each in nexts - {name}:
            longest = max(longest, chain(each), key=len)
        return (name, *longest)

    found = max([chain(name) for name in sorted(paths)], key=len)
    return list(found)


def queue_only() -> tuple[int, int]:
    """Return the tables of a project with the queue alone, and the modules it loads."""
    done = subprocess.run(
        [sys.executable, "-c", _QUEUE_ONLY], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tables, loaded = map(int, done.stdout.split())
    return tables, loaded


def repeats() -> int:
    """Return how many runs of as many equal lines of code, or more, are written twice."""
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    found = 0
    for name, path in sorted(modules().items()):
        lines = list(_code(path.read_text(encoding="utf-8")))
        was_repeat = False
        for at in range(len(lines) - REPEATED + 1):
            window = tuple(lines[at : at + REPEATED])
            is_repeat = first.setdefault(window, (name, at)) != (name, at)
            found += is_repeat and not was_repeat
            was_repeat = is_repeat
    return found


def _code(text: str) -> Iterator[str]:
    """Yield the lines that do something: no imports, no parameters and brackets by themselves."""
    for line in map(str.strip, text.splitlines()):
        if len(line) > 1 and not line.startswith(("#", "from ", "import ", ")", '"""')):
            yield line


def figures() -> dict[str, int]:
    """Return each figure by the words of docs/architecture.md."""
    tables, loaded = queue_only()
    return {
        "rooms at the package's top": len(rooms()),
        "modules": len(modules()),
        "longest chain of imports": len(longest_chain()),
        "tables of a queue-only project": tables,
        'modules it loads for `DelayedQueue("a")`': loaded,
        f"runs of {REPEATED} equal lines written twice": repeats(),
    }


if __name__ == "__main__":
    for figure, value in figures().items():
        print(f"{figure:45} {value:4}")  # noqa: T201 - it is the command's output
    print("\n".join(longest_chain()))  # noqa: T201
