"""The job API: every module of ``routes`` that has a ``router`` is a part of it."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from delayed_queue import __version__
from delayed_queue.http.api import routes
from delayed_queue.http.api.auth import BearerToken
from delayed_queue.http.api.building import Api, make_api
from delayed_queue.http.api.quick import in_loop


def make_service() -> Api:
    """Return the API of jobs with all its routes; what names no `requires` needs a token."""
    api = make_api(
        "Delayed jobs",
        __version__,
        "delayed-queue",
        description="Delay work, and have it called back or pull it when it is due.",
        auth=BearerToken(),
    )
    for module in sorted(each.name for each in iter_modules(routes.__path__)):
        api.add_router("", import_module(f"{routes.__name__}.{module}").router)
    api.in_loop = in_loop()
    return api
