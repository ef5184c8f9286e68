"""Queues whose connections pass through a proxy."""

from __future__ import annotations

from tests.support.proxied import each_round, proxied, proxy, queue

__all__ = ["each_round", "proxied", "proxy", "queue"]
