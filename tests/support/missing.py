"""A library that is not installed, for those who import it within; nothing of it stays behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def not_installed(library: str, *importers: str) -> Iterator[None]:
    """Have the library missing, and these modules of ours, with all below them, imported anew."""
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
