"""Notice changed source files, for ``--reload``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from django.utils.autoreload import iter_all_python_module_files

LOOK_SECONDS: Final = 1.0


class SourceWatch:
    """Compares modification times, as Django's development server does."""

    def __init__(self) -> None:
        self._looked_at = time.monotonic()
        self._times = _modification_times()

    def has_changed(self) -> bool:
        """Return whether a file has changed since the last time this was true."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        before, self._times = self._times, _modification_times()
        return any(self._times.get(path) != at for path, at in before.items())


def _modification_times() -> dict[Path, float]:
    found = {}
    for path in iter_all_python_module_files():
        try:
            found[path] = path.stat().st_mtime
        except OSError:  # removed: then it is missing here, which is a change
            continue
    return found
