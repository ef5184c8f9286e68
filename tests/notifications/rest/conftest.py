"""Callers of the REST interface with tokens."""

from __future__ import annotations

from tests.http.api.conftest import caller, forgetful, make_client

__all__ = ["caller", "forgetful", "make_client"]
