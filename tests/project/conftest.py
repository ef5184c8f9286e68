"""A receiver of callbacks and the database as Spark sees it, for the paths of a message."""

from __future__ import annotations

from tests.http.callbacks.conftest import fresh, receiver
from tests.spark.conftest import dsn, known

__all__ = ["dsn", "fresh", "known", "receiver"]
