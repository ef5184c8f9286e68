"""The wrapper that Django loads for ``ENGINE: tests.support.tenants``."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

from django.db.backends.postgresql import base

schema: Final[ContextVar[str]] = ContextVar("schema", default="public")


class DatabaseWrapper(base.DatabaseWrapper):
    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)  # type: ignore[misc] # untyped
        cursor.execute(f"SET search_path = {schema.get()}")
        return cursor
