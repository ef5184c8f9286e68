"""Send one callback, or a few, to a receiver on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, TypeVar

from aiohttp.abc import AbstractResolver
from aiohttp.resolver import AsyncResolver

from delayed_queue.http.callbacks.calls import CallbackRequest, CallbackResult
from delayed_queue.http.callbacks.client import CallbackClient
from delayed_queue.http.conf import CallbackSettings
from tests.http.callbacks.names import NameServer
from tests.http.callbacks.servers import Receiver

T = TypeVar("T")


def reaching(*receivers: Receiver, **more: Any) -> CallbackSettings:
    """Return settings that allow these receivers, and no others on loopback."""
    return CallbackSettings(
        **{
            "ALLOWED_NETWORKS": [each.host for each in receivers],
            "ALLOWED_PORTS": [each.port for each in receivers],
            "TOTAL_TIMEOUT": timedelta(seconds=8),
            **more,
        }
    )


def names_of(server: NameServer) -> AbstractResolver:
    # Not lookups=: pycares 5.2 frees its text before c-ares has read it.
    return AsyncResolver(nameservers=["127.0.0.1"], udp_port=server.port, timeout=3, tries=1)


def with_client(
    settings: CallbackSettings,
    use: Callable[[CallbackClient], Awaitable[T]],
    resolver: Callable[[], AbstractResolver] | None = None,
) -> T:
    """Run with a client in its own event loop, both closed at the end."""

    async def main() -> T:
        made = None if resolver is None else resolver()
        client = CallbackClient(settings, resolver=made)
        try:
            return await use(client)
        finally:
            await client.close()

    return asyncio.run(main())


def send_once(
    url: str,
    settings: CallbackSettings,
    resolver: Callable[[], AbstractResolver] | None = None,
    body: bytes = b'{"a": 1}',
) -> CallbackResult:
    return with_client(settings, lambda client: client.send(CallbackRequest(url, body)), resolver)


def send_all(
    receiver: Receiver, number: int, between: Callable[[], None] = lambda: None, **keys: object
) -> list[CallbackResult]:
    """Send one callback after the other with one client."""

    async def use(client: CallbackClient) -> list[CallbackResult]:
        results = []
        for turn in range(number):
            if turn:
                between()
            results.append(await client.send(CallbackRequest(receiver.url, b"{}")))
        return results

    return with_client(reaching(receiver, **keys), use)
