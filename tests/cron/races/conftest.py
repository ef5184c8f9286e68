"""A queue in a database that commits."""

from __future__ import annotations

from tests.queue.races.conftest import queue

__all__ = ["queue"]
