"""Two more connections to a database that commits."""

from __future__ import annotations

from tests.races.conftest import admin, other

__all__ = ["admin", "other"]
