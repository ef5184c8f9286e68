"""The app of the worker processes that are measured: one handler, which stamps."""

from __future__ import annotations
