"""The only door to PostgreSQL: run and prepare statements, repeat them while it is away, listen.

The statements of a store are read where there may be no Django: what runs them is loaded when a
method first runs one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from delayed_queue.db.statements import execute as execute
    from delayed_queue.db.statements import fetch as fetch
    from delayed_queue.db.statements import fetch_all as fetch_all
    from delayed_queue.db.statements import fetch_all_and_notify as fetch_all_and_notify
    from delayed_queue.db.statements import fetch_all_at_once as fetch_all_at_once
    from delayed_queue.db.statements import fetch_and_notify as fetch_and_notify
    from delayed_queue.db.statements import notify as notify

# As Django has it.
DEFAULT_ALIAS: Final = "default"


_RUNNERS: Final = (
    "execute", "fetch", "fetch_all", "fetch_all_and_notify", "fetch_all_at_once",
    "fetch_and_notify", "notify",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _RUNNERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.statements"), name)
    globals()[name] = found  # asked for once
    return found
