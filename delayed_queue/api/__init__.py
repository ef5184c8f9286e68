"""The HTTP API: its frame in this folder, its calls in ``routes``."""

from __future__ import annotations

from delayed_queue.api.auth import requires
from delayed_queue.api.bodies import takes_body
from delayed_queue.api.building import make_api
from delayed_queue.api.problems import Problem

__all__ = ["Problem", "make_api", "requires", "takes_body"]
