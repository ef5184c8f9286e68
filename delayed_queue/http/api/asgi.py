"""Wrap Django's ASGI application: early limits, and an end to waiting at shutdown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import import_module
from types import FrameType
from typing import Any, Final

from delayed_queue.http.api.bodies import MEDIA_TYPE, Problem, too_large
from delayed_queue.http.api.waiting import waiting_pops
from delayed_queue.http.conf import api_settings

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[..., Awaitable[None]]

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class GuardedApplication:
    """An ASGI application whose requests are bounded, and whose waiting pops end at shutdown.

    ``application = GuardedApplication(get_asgi_application(), prefix="/queue/")``

    Django collects a body in full, on disk if need be, before any view can refuse it: below the
    prefix a body larger than any call takes is cut off here, whatever its length was said to be.
    With ``direct`` those requests go past middlewares and Django's thread for each request, which
    halves their cost; the project must not count on a middleware for them.

    At SIGTERM and SIGINT waiting pops are answered 204, so that the server can end its requests.
    """

    def __init__(
        self, application: Application, *, prefix: str = "/", direct: bool = False
    ) -> None:
        self._application = application
        self._prefix = prefix
        self._inner = _direct_handler() if direct else application

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(self._prefix):
            await self._bounded(scope, receive, send)
        else:
            await self._application(scope, receive, send)

    async def _bounded(self, scope: Any, receive: Receive, send: Send) -> None:
        limits = api_settings()
        limit = max(limits.BODY_BYTES, limits.BULK_BYTES)
        counted = _Counted(receive, limit)
        if _announced(scope) > limit:
            await _refuse(send, too_large(limit))
            return
        try:
            await self._inner(scope, counted, send)
        except _TooLarge:
            await _refuse(send, too_large(limit))


def _direct_handler() -> Application:
    # Only now: Django's handlers are made once the apps are ready.
    made: Application = import_module("delayed_queue.http.api.direct").DirectHandler()
    return made


class _TooLarge(Exception):
    """More came than any call takes; Django has not begun to answer."""


class _Counted:
    """A receive() that raises when the body becomes larger than the limit."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._left = limit

    async def __call__(self) -> Message:
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise _TooLarge
        return message


def _announced(scope: Any) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if text.isdigit() and len(text) < 19 else 0


async def _refuse(send: Send, problem: Problem) -> None:
    """Answer, and have the server close: the rest of the body is not read."""
    body = problem.as_json()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """Speak the lifespan protocol, which Django does not."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            _drain_at_stop()
            await send({"type": "lifespan.startup.complete"})
        else:
            waiting_pops.drain()
            await send({"type": "lifespan.shutdown.complete"})
            return


def _drain_at_stop() -> None:
    """Have a stop signal end the waits, before the server does what it does at one.

    The shutdown of the lifespan comes too late: servers wait for their requests first.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    for number in _STOPS:
        _chain(number, signal.getsignal(number))


def _chain(number: int, servers: Any) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        waiting_pops.drain()
        if callable(servers):
            servers(number, frame)

    # Not where the server has no handler: the signal is to end the process then.
    if callable(servers):
        signal.signal(number, stop)
