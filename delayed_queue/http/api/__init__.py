"""The HTTP API: the frame that any API can be made in, and the calls about jobs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayed_queue.http.api.auth import demand as demand
    from delayed_queue.http.api.auth import requires as requires
    from delayed_queue.http.api.bodies import Problem as Problem
    from delayed_queue.http.api.bodies import takes_body as takes_body
    from delayed_queue.http.api.building import make_api as make_api

# Imported on first use: an asgi.py imports the wrapper of this package before apps are ready.
_HOMES = {
    "Problem": "bodies",
    "demand": "auth",
    "make_api": "building",
    "requires": "auth",
    "takes_body": "bodies",
}

__all__ = ["Problem", "demand", "make_api", "requires", "takes_body"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
