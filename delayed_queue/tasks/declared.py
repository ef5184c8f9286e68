"""The backends that ``TASKS`` declares, as far as they are ours."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings
from django.utils.module_loading import import_string

from delayed_queue.tasks.backend import DelayedQueueBackend
from delayed_queue.tasks.payloads import TaskGone

# Our own instances, by alias. Django makes one per thread, and new ones when settings change, but
# only after our receiver of that signal.
_backends: Final[dict[str, Any]] = {}


def is_ours(configured: Any) -> bool:
    """Return whether an entry of TASKS names our backend or a subclass."""
    path: Any = configured.get("BACKEND") if isinstance(configured, dict) else None
    try:
        found = import_string(path)
    except (ImportError, TypeError, AttributeError):
        return False
    return isinstance(found, type) and issubclass(found, DelayedQueueBackend)


def declared() -> Iterator[tuple[str, Any]]:
    """Yield alias and backend of each entry of TASKS that is ours."""
    if not _backends:
        for alias, configured in (getattr(settings, "TASKS", None) or {}).items():
            if is_ours(configured):
                made = import_string(configured["BACKEND"])
                _backends[alias] = made(alias=alias, params=configured)
    yield from list(_backends.items())


def backend_of(alias: str) -> Any:
    """Return the backend of an alias; raise TaskGone."""
    backend = dict(declared()).get(alias)
    if backend is None:
        raise TaskGone(f"TASKS has no backend {alias!r} of delayed_queue: declare it.")
    return backend


def forget_declared() -> None:
    _backends.clear()
