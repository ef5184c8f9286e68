"""Callers with tokens, on connections that pass through a proxy."""

from __future__ import annotations

from tests.api.conftest import caller, forgetful, make_client
from tests.faults.conftest import admin, other, proxied, proxy

__all__ = ["admin", "caller", "forgetful", "make_client", "other", "proxied", "proxy"]
