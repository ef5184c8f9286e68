"""A queue in a database that commits, and empty topic caches."""

from __future__ import annotations

from tests.queue.races.conftest import impatient, new_process, queue

__all__ = ["impatient", "new_process", "queue"]
