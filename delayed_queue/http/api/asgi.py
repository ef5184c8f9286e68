"""The API under ASGI: bodies are bounded early, and waits end before the server stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from io import BytesIO
from types import FrameType
from typing import Any, Final

from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponseBase
from django.urls import set_script_prefix

from delayed_queue.conf import get_settings
from delayed_queue.http.api.bodies import too_large
from delayed_queue.http.api.clients import RECEIVE
from delayed_queue.http.api.problems import MEDIA_TYPE, Problem
from delayed_queue.http.api.waiting import waiting_pops
from delayed_queue.http.conf import api_settings
from delayed_queue.worker.deadlines import LAST_EXIT_SECONDS, exit_after

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[..., Awaitable[None]]

_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class GuardedApplication:
    """An ASGI application that serves the API below a prefix past Django's middleware.

    ``application = GuardedApplication(get_asgi_application(), prefix="/queue/")``

    Django collects a body in full, on disk if need be, before any view can refuse it. Below the
    prefix a body above the limit of all calls is cut off here, with any announced length.

    At SIGTERM and SIGINT waiting pops are answered 204, so that the server can finish its requests.
    A process that has not ended within the setting SHUTDOWN_TIMEOUT and four seconds exits (W20).
    """

    def __init__(self, application: Application, *, prefix: str | tuple[str, ...]) -> None:
        self._application = application
        self._prefix = prefix
        self._direct = DirectHandler()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
        elif scope["type"] == "http" and scope["path"].startswith(self._prefix):
            await self._direct(scope, receive, send)
        else:
            await self._application(scope, receive, send)


class DirectHandler(ASGIHandler):
    """Django's handler without middleware, signals and a thread for each request.

    Django starts that thread, if only to close its connections, and switches to it once for each
    middleware and signal: more work than adding a job. Views of the API run in the pool, which
    tends its connections itself. ``request_started`` and ``request_finished`` are not sent.
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
            body = await self._body(scope, receive)
        except RequestAborted:
            return
        except Problem as problem:
            await _refuse(send, problem)
            return
        with body:
            set_script_prefix(get_script_prefix(scope))
            request, refusal = self.create_request(scope, body)
            response: Any = refusal
            if request is not None:
                request.META[RECEIVE] = receive
                response = await self._answer(request)
            await self.send_response(response, send)

    async def _body(self, scope: Any, receive: Receive) -> BytesIO:
        """Return the body; raise Problem 413 as soon as it is larger than any call takes."""
        limit = max(api_settings().BODY_BYTES, api_settings().BULK_BYTES)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
            raise too_large(limit)
        body, has_more = BytesIO(), True
        while has_more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RequestAborted
            body.write(message.get("body", b""))
            if body.tell() > limit:
                raise too_large(limit)
            has_more = message.get("more_body", False)
        body.seek(0)
        return body

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        response: Any = await self.run_get_response(request)
        # Without it the answer would be sent in chunks.
        if not response.streaming and response.status_code != HTTPStatus.NO_CONTENT:
            response.headers.setdefault("Content-Length", str(len(response.content)))
        return response  # type: ignore[no-any-return]


async def _refuse(send: Send, problem: Problem) -> None:
    """Answer, and make the server close: the rest of the body is not read."""
    body = problem.as_json()
    headers = [
        (b"content-type", MEDIA_TYPE.encode()),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _live(receive: Receive, send: Send) -> None:
    """Serve the lifespan protocol, which Django does not."""
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
    """Install a signal handler that ends the waits, limits the stop and calls the server's.

    The shutdown of the lifespan comes too late: servers wait for their requests first. The limit
    outlasts it, because Python then joins threads that may wait for the database.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    arm = exit_after(get_settings().SHUTDOWN_TIMEOUT.total_seconds() + LAST_EXIT_SECONDS)
    for number in _STOPS:
        _chain(number, signal.getsignal(number), arm)


def _chain(number: int, servers: Any, arm: Callable[[], None]) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        arm()
        waiting_pops.drain()
        if callable(servers):
            servers(number, frame)

    # Where the server has no handler, the signal must end the process.
    if callable(servers):
        signal.signal(number, stop)
