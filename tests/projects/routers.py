"""Routers of projects with several databases."""

from __future__ import annotations

from typing import Any


class QueueElsewhere:
    """Routes the package, and nothing else, to ``queue``."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "queue" if model._meta.app_label.startswith("delayed_queue") else None

    db_for_read = db_for_write

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool:
        return (db == "queue") is app_label.startswith("delayed_queue")
