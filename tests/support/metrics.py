"""Metrics of the code: ``make metrics`` prints them, docs/architecture.md states them.

Lines are all lines of a package's ``*.py`` files, migrations included.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.support import prose

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "delayed_queue"
# Single files at the top of the package.
VALUES: Final = "values, rates, settings, DelayedQueue, migrations"
# Fewer equal lines than these are no repetition.
REPEATED: Final = 6
# Folders without code.
_DATA: Final = {"locale", "sql", "static", "templates", "__pycache__"}

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
    """Return the modules by name, without migrations."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        if "migrations" not in path.parts:
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def packages() -> list[str]:
    """Return the names of the top-level packages and modules."""
    return sorted(
        path.stem
        for path in PACKAGE.iterdir()
        if path.name not in _DATA
        and path.stem != "__init__"
        and (path.is_dir() or path.suffix == ".py")
    )


def lines() -> dict[str, int]:
    """Return the number of lines of each package."""
    found: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        top, *below = path.relative_to(PACKAGE).parts
        package = top if below and top != "migrations" else VALUES
        found[package] += len(path.read_text(encoding="utf-8").splitlines())
    return dict(sorted(found.items()))


def loaded_by(path: Path) -> set[str]:
    """Return our modules that a module imports when it is loaded."""
    return {
        name
        for node in _statements(ast.parse(path.read_text(encoding="utf-8")).body)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("delayed_queue")
        for name in (f"{node.module}.{each.name}" for each in node.names)
    }


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the code that runs at import, without functions and type-checking blocks."""
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
    """Return the tables of a queue-only project, and the modules it loads."""
    done = subprocess.run(
        [sys.executable, "-c", _QUEUE_ONLY], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tables, loaded = map(int, done.stdout.split())
    return tables, loaded


def repeats() -> int:
    """Return the number of repeated runs of at least that many equal lines of code."""
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    found = 0
    for name, path in sorted(modules().items()):
        text = list(_code(path.read_text(encoding="utf-8")))
        was_repeat = False
        for at in range(len(text) - REPEATED + 1):
            window = tuple(text[at : at + REPEATED])
            is_repeat = first.setdefault(window, (name, at)) != (name, at)
            found += is_repeat and not was_repeat
            was_repeat = is_repeat
    return found


def _code(text: str) -> Iterator[str]:
    """Yield the effective lines: no imports, and no lines of only parameters or brackets."""
    for line in map(str.strip, text.splitlines()):
        if len(line) > 1 and not line.startswith(("#", "from ", "import ", ")", '"""')):
            yield line


def nodes() -> Iterator[ast.AST]:
    for path in modules().values():
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


def broad_excepts() -> int:
    """Return the number of handlers that catch Exception or BaseException."""
    broad = {"Exception", "BaseException"}
    return sum(
        isinstance(node, ast.ExceptHandler)
        and isinstance(node.type, ast.Name)
        and node.type.id in broad
        for node in nodes()
    )


def crowded_classes(most: int = 8) -> dict[str, int]:
    """Return the classes that assign more than ``most`` attributes outside of __init__."""
    found = {}
    for node in nodes():
        if isinstance(node, ast.ClassDef) and (count := len(_assigned(node))) > most:
            found[node.name] = count
    return found


def _assigned(class_: ast.ClassDef) -> set[str]:
    return {
        target.attr
        for method in class_.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef)
        and method.name not in ("__init__", "__post_init__")
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        for target in (node,)
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }


def figures() -> dict[str, int]:
    """Return each figure of docs/architecture.md by its name there."""
    tables, loaded = queue_only()
    return {
        "longest chain of imports": len(longest_chain()),
        "tables of a queue-only project": tables,
        'modules it loads for `DelayedQueue("a")`': loaded,
        f"runs of {REPEATED} equal lines written twice": repeats(),
        "handlers of every `Exception`": broad_excepts(),
        "classes that change more than eight attributes": len(crowded_classes()),
        **{f"odd phrases in `{folder}`": prose.count(folder) for folder in prose.FOLDERS},
    }


def main() -> None:
    for name, value in [*lines().items(), ("all lines", sum(lines().values())), *figures().items()]:
        print(f"{name:50} {value:7,}")  # noqa: T201 - it is the command's output
    print("\n".join(longest_chain()))  # noqa: T201
    print(crowded_classes())  # noqa: T201


if __name__ == "__main__":
    main()
