"""All statements of the package by name, found by walking its stores."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import SimpleNamespace
from typing import Final

import delayed_queue
from delayed_queue.db.sql import CLOCK

# Notifications have tests/notifications/test_plans.py.
_ELSEWHERE: Final = "delayed_queue.notifications"


# Parts of statements: fragments, and the kinds of a topic.
_PIECES: Final = (".store.fragments", ".http.store.kinds")


def _is_store(module: str) -> bool:
    return ".store" in module or module == "delayed_queue.db.sql"


def _find() -> dict[str, str]:
    found: dict[str, str] = {}
    pieces = {CLOCK}
    for each in walk_packages(delayed_queue.__path__, "delayed_queue."):
        if not _is_store(each.name) or each.name.startswith(_ELSEWHERE):
            continue
        texts = {
            name: value
            for name, value in vars(import_module(each.name)).items()
            if isinstance(value, str) and " " in value and name.isupper() and name[0] != "_"
        }
        if each.name.endswith(_PIECES):
            pieces |= set(texts.values())
        else:
            found |= texts
    return {name: text for name, text in found.items() if text not in pieces}


STATEMENTS: Final = _find()
sql: Final = SimpleNamespace(**STATEMENTS)
