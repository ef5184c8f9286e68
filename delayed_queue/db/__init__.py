"""PostgreSQL: run and prepare statements, repeat them while it is away, listen.

Stores are imported where Django is missing, so what runs statements is loaded at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from delayed_queue.db.statements import execute as execute
    from delayed_queue.db.statements import fetch as fetch
    from delayed_queue.db.statements import notify as notify
    from delayed_queue.db.statements import run as run

# Django's constant.
DEFAULT_ALIAS: Final = "default"


def __getattr__(name: str) -> Any:
    if name not in ("execute", "fetch", "notify", "run"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"{__name__}.statements"), name)
    return found
