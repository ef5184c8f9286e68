"""Handlers that import a missing module."""

from __future__ import annotations

import a_module_that_is_not_there  # type: ignore[import-not-found] # noqa: F401
