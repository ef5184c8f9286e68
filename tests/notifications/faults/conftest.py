"""Callers with tokens, on connections that pass through a proxy."""

from __future__ import annotations

from tests.http.api.conftest import caller, forgetful, make_client
from tests.support.proxied import proxied, proxy

__all__ = ["caller", "forgetful", "make_client", "proxied", "proxy"]
