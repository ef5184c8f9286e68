"""A library that is missing for imports within the block, with all traces removed after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def not_installed(library: str, *importers: str) -> Iterator[None]:
    """Hide the library, and reimport these modules of ours with all below them."""
    names = (library, *importers)
    kept = _forget(names)
    sys.modules[library] = None  # type: ignore[assignment] # as documented: importing it fails
    try:
        yield
    finally:
        _forget(names)
        sys.modules.update(kept)
        for name, module in kept.items():
            parent, _, last = name.rpartition(".")
            if parent in sys.modules:
                setattr(sys.modules[parent], last, module)


def _forget(names: tuple[str, ...]) -> dict[str, ModuleType]:
    below = tuple(f"{name}." for name in names)
    found = [name for name in sys.modules if name in names or name.startswith(below)]
    return {name: sys.modules.pop(name) for name in found}
