"""A backend in the manner of django-tenants: each cursor is led to the schema in force."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from django.db.backends.postgresql import base

schema: ContextVar[str] = ContextVar("schema", default="public")


class DatabaseWrapper(base.DatabaseWrapper):
    """Sets search_path before a cursor is handed out."""

    def _cursor(self, name: str | None = None) -> Any:
        cursor = super()._cursor(name)  # type: ignore[misc] # not in the stubs
        # Not when the connection is being made, nor for a cursor of the server's.
        if name is None and self.connection is not None:
            self.connection.execute("SELECT set_config('search_path', %s, false)", [self._path()])
        return cursor

    def _path(self) -> str:
        return ", ".join(dict.fromkeys([schema.get(), "public"]))
