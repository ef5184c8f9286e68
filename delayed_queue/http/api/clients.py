"""The connection of a client, where the server shows it: ASGI and gunicorn do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from django.http import HttpRequest

T = TypeVar("T")

# The key of ASGI's receive function in the request's META.
RECEIVE: Final = "delayed_queue.receive"


def socket_of(request: HttpRequest) -> socket.socket | None:
    """Return the client's socket; None under ASGI, TLS, and servers that keep it."""
    found = request.META.get("gunicorn.socket")
    # A TLS socket cannot be peeked at, nor shut down in one direction. Nor can gevent's be trusted.
    return found if type(found) is socket.socket else None


def stop_reading(request: HttpRequest) -> None:
    """Receive no more of the request's body.

    gunicorn discards an unread body before it takes the next request, and would hold its thread
    for five seconds while a client sends none of the rest.
    """
    meta, client = request.META, socket_of(request)
    has_body = meta.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in meta
    if client is not None and has_body:
        try:
            client.shutdown(socket.SHUT_RD)
        except OSError:  # the client has closed it
            return


def is_gone(request: HttpRequest) -> bool:
    """Return whether the client has closed its connection; False where that cannot be seen."""
    client = socket_of(request)
    if client is None:
        return False
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


async def while_connected(request: HttpRequest, work: Callable[[], Awaitable[T]]) -> T | None:
    """Return the result of the work; cancel it, and return None, when the client is gone.

    Nothing starts for a client that left before. A plain ASGI handler cancels the view itself.
    """
    if is_gone(request):
        return None
    tasks = working, _ = asyncio.ensure_future(work()), asyncio.ensure_future(_departure(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in tasks:
            each.cancel()
    await asyncio.wait(tasks)
    return None if working.cancelled() else working.result()


async def _departure(request: HttpRequest) -> None:
    """Wait until the client disconnects; for ever where that cannot be seen."""
    if receive := request.META.get(RECEIVE):
        while (await receive())["type"] != "http.disconnect":
            continue
        return
    loop, client, readable = asyncio.get_running_loop(), socket_of(request), asyncio.Event()
    if client is not None:
        loop.add_reader(client, readable.set)
    try:
        await readable.wait()
    finally:
        if client is not None:
            loop.remove_reader(client)
    if not is_gone(request):
        # Bytes of a next request would wake this again and again.
        await loop.create_future()
