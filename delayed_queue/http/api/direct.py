"""The API on the event loop itself, past middlewares and Django's thread for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from io import BytesIO
from typing import Any, Final, TypeVar

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponseBase
from django.urls import set_script_prefix

from delayed_queue.http.api.building import View, is_stoppable

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_RECEIVE: Final = "delayed_queue_receive"


class DirectHandler(ASGIHandler):
    """Django's handler for requests that need none of its surroundings.

    Django starts a thread for each request, if only to close its connections, and changes to it
    once for each middleware and signal: more work than adding a job. Views of the API run in the
    pool, which tends its connections itself. No middleware sees these requests, and the
    signals ``request_started`` and ``request_finished`` are not sent.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = [self._called]
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(self._resolved)

    async def _resolved(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await super()._get_response_async(request)  # type: ignore[misc]
        return response

    async def _called(
        self, request: HttpRequest, view: View, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call a view that can be stopped, and do so when the client has gone; leave others."""
        if not is_stoppable(view):
            return None
        return await self._while_connected(
            view(request, *args, **kwargs), getattr(request, _RECEIVE)
        )

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            set_script_prefix(get_script_prefix(scope))
            request, response = self.create_request(scope, body)
            with suppress(_Left):
                if request is not None:
                    setattr(request, _RECEIVE, receive)
                    response = await self._answer(request)
                await self._send(response, receive, send)

    async def read_body(self, receive: Receive) -> Any:
        """Return the body as a file; without one on disk if it came in one piece."""
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            return BytesIO(message.get("body", b""))
        return await super().read_body(_beginning_with(message, receive))

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        response: Any = await self.run_get_response(request)
        # Else a middleware's work: without it the answer would go in chunks.
        if not response.streaming and response.status_code != HTTPStatus.NO_CONTENT:
            response.headers.setdefault("Content-Length", str(len(response.content)))
        return response  # type: ignore[no-any-return]

    async def _send(self, response: Any, receive: Receive, send: Send) -> None:
        sending = self.send_response(response, send)
        await (self._while_connected(sending, receive) if response.streaming else sending)

    async def _while_connected(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Return what the work does; cancel it, and raise, when the client has gone."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, RequestAborted):
                await leaving
        try:
            return await working
        except asyncio.CancelledError:
            raise _Left from None


class _Left(BaseException):
    """The client has gone, and nobody is to make a response of this."""


def _beginning_with(first: Any, receive: Receive) -> Receive:
    """Return a receive() that begins with a message that was taken already."""
    begun = [first]

    async def again() -> Any:
        return begun.pop() if begun else await receive()

    return again
