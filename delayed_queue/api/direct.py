"""The API on the event loop itself, past middlewares and Django's thread for each request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponseBase
from django.urls import set_script_prefix

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class DirectHandler(ASGIHandler):
    """Django's handler for requests that need none of its surroundings.

    Django starts a thread for each request, if only to close its connections, and changes to it
    once for each middleware and signal: more work than adding a job. Views of the API run in the
    pool, which tends its connections itself. No middleware sees these requests, and the
    signals ``request_started`` and ``request_finished`` are not sent.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(self._resolved)

    async def _resolved(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await super()._get_response_async(request)  # type: ignore[misc]
        return response

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with body:
            set_script_prefix(get_script_prefix(scope))
            request, refusal = self.create_request(scope, body)
            if request is None:
                await self.send_response(refusal, send)  # type: ignore[arg-type]
            else:
                await self._while_connected(request, receive, send)

    async def _while_connected(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        """Answer the request; cancel that when the client has gone."""
        answering = asyncio.ensure_future(self._answer(request, send))
        leaving = asyncio.ensure_future(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (answering, leaving):
                task.cancel()
            with suppress(asyncio.CancelledError, RequestAborted):
                await leaving
        with suppress(asyncio.CancelledError):
            await answering

    async def _answer(self, request: HttpRequest, send: Send) -> None:
        response: Any = await self.run_get_response(request)
        # Else a middleware's work: without it the answer would go in chunks.
        if not response.streaming and response.status_code != HTTPStatus.NO_CONTENT:
            response.headers.setdefault("Content-Length", str(len(response.content)))
        await self.send_response(response, send)
