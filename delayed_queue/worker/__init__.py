"""Workers: processes that claim messages and run their handlers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayed_queue.worker.engine.settling import Counts as Counts
    from delayed_queue.worker.engine.worker import Worker as Worker
    from delayed_queue.worker.options import WorkerOptions as WorkerOptions

# Loaded on first use: the models of this package do not need the engine.
_HOMES = {"Counts": "engine.settling", "Worker": "engine.worker", "WorkerOptions": "options"}

__all__ = ["Counts", "Worker", "WorkerOptions"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
