"""Simulated third parties: they refuse, delay, hang, hang up, and record their calls.

Real servers on loopback, each in a thread with an event loop. A rule returns the reply to a call.
``accepted`` counts the acceptances of each id, ``began_at`` has the time of the call.
"""

from __future__ import annotations

import asyncio
import email
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session
from standardwebhooks import Webhook, WebhookVerificationError

# Returns the reply to the n-th call (from 1) of a recipient or body; "" means success.
Rule = Callable[[Any, int], str]


class Server:
    """An event loop in a thread; subclasses implement the protocol."""

    # Seconds that a call hangs; None: until ``release``.
    hang_seconds: float | None = None

    def __init__(self, rule: Rule = lambda asked, times: "", *, latency: float = 0.0) -> None:
        self.rule, self.latency = rule, latency
        self.accepted: Counter[str] = Counter()
        self.began_at: dict[str, float] = {}
        self.seen: Counter[str] = Counter()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._released = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(20)
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(20)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def release(self) -> None:
        """End all hanging calls; later calls do not hang."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def hang(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), self.hang_seconds)

    def accept(self, key: str, began_at: float) -> None:
        self.accepted[key] += 1
        self.began_at[key] = began_at

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError


class FakeSmtp(Server):
    """An SMTP server. The keys are ids of notifications, from the Message-ID.

    Replies to a recipient: ``450``, ``550`` refuse it, ``drop`` hangs up before DATA, ``hang``
    does not reply, ``drop-after`` accepts the mail and hangs up.
    """

    async def _start(self) -> None:
        # By the id of a notification: the link for unsubscribing.
        self.links: dict[str, str] = {}
        # For each connection: the time of RCPT, and the reply of the rule.
        self._mails: dict[SMTP, tuple[float, str]] = {}
        self._server = await self._loop.create_server(self._session, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _session(self) -> SMTP:
        return SMTP(self, hostname="fake.example", enable_SMTPUTF8=True)

    async def _stop(self) -> None:
        self._server.close()
        for session in self._mails:
            _abort(session)

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.seen[f"<{address}>"] += 1
        answer = self.rule(address, self.seen[f"<{address}>"])
        self._mails[server] = time.time(), answer
        if answer.isdigit():
            return f"{answer} no mailbox {address}"
        if answer == "hang":
            await self.hang()
        if answer == "drop":
            _abort(server)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        began_at, answer = self._mails[server]
        content = envelope.original_content or b""
        message = email.message_from_bytes(content)
        key = message["Message-ID"].strip("<>").partition("@")[0]
        if link := message["List-Unsubscribe"]:
            self.links[key] = link.strip(" <>")
        self.seen[key] += 1
        await asyncio.sleep(self.latency)
        self.accept(key, began_at)
        if answer == "drop-after":
            _abort(server)
        return "250 accepted"


def _abort(server: SMTP) -> None:
    if isinstance(server.transport, asyncio.Transport):
        server.transport.abort()


class WebServer(Server):
    """An HTTP server; subclasses define the routes."""

    def _routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    async def _start(self) -> None:
        app = web.Application()
        app.add_routes(self._routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()

    def at(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def hang_up(request: web.Request, *, reset: bool = False) -> web.Response:
    """Close the connection without a reply, or reset it."""
    if request.transport is not None and reset:
        own: socket.socket = request.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    elif request.transport is not None:
        request.transport.close()
    return web.Response()


@dataclass(frozen=True, slots=True)
class Call:
    """A request that arrived, and the reply; instants are Unix seconds."""

    body: Any
    id: str
    arrived_at: float
    answered_at: float
    answer: str

    @property
    def succeeded(self) -> bool:
        return self.answer.startswith("2")


class FakeWeb(WebServer):
    """A provider of texts, or a receiver of calls: acts once for each id, records each call.

    Replies to a body, to which the path is added: a status, with Retry-After in ``429 2``.
    ``drop``, ``reset``, ``hang`` do not act, ``drop-after`` and ``hang-after`` act without a
    reply, ``blocked`` is a 200 with that code.
    """

    # Secret of Standard Webhooks; if set, calls without a valid signature are refused and counted.
    secret = ""

    def __init__(self, rule: Rule = lambda asked, times: "", *, latency: float = 0.0) -> None:
        super().__init__(rule, latency=latency)
        self.calls: list[Call] = []
        self.unsigned = 0

    def _routes(self) -> list[web.RouteDef]:
        return [web.post("/{path:.*}", self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        arrived_at, body = time.time(), await request.read()
        try:
            # With the library of Standard Webhooks, independent of our code.
            if self.secret:
                Webhook(self.secret).verify(body, dict(request.headers))
        except WebhookVerificationError:
            self.unsigned += 1
            return web.Response(status=401)
        asked = json.loads(body) | {"path": request.path}
        id_ = request.headers.get("webhook-id") or request.headers["Idempotency-Key"]
        self.seen[id_] += 1
        answer = self.rule(asked, self.seen[id_]) or "200"
        acts = answer.startswith("2") or answer.endswith("-after")
        if acts and not self.accepted[id_]:
            self.accept(id_, arrived_at)
            await asyncio.sleep(self.latency)
        if answer.startswith("hang"):
            await self.hang()
        self.calls.append(Call(asked, id_, arrived_at, time.time(), answer))
        return _response(request, answer)


def _response(request: web.Request, answer: str) -> web.Response:
    status, _, retry_after = answer.partition(" ")
    if answer == "blocked":
        return web.json_response({"code": "blocked"})
    if not status.isdigit():
        return hang_up(request, reset=answer == "reset")
    headers = {"Retry-After": retry_after} if retry_after else {}
    if status == "302":
        headers["Location"] = "http://169.254.169.254/latest/meta-data/"
    return web.json_response({}, status=int(status), headers=headers)
