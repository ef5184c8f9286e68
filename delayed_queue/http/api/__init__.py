"""The HTTP API: endpoints, which any API can be built of, and the calls about jobs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from delayed_queue.http.api.auth import ApiRequest as ApiRequest
    from delayed_queue.http.api.auth import demand as demand
    from delayed_queue.http.api.endpoints import Endpoints as Endpoints
    from delayed_queue.http.api.openapi import Api as Api
    from delayed_queue.http.api.problems import Problem as Problem

# Imported on first use: an asgi.py imports the wrapper of this package before apps are ready.
_HOMES = {
    "Api": "openapi",
    "ApiRequest": "auth",
    "Endpoints": "endpoints",
    "Problem": "problems",
    "demand": "auth",
}

__all__ = ["Api", "ApiRequest", "Endpoints", "Problem", "demand"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
