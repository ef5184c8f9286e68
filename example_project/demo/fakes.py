"""Third parties as they are: they refuse, delay, hang, hang up, and remember what they got.

Real servers on loopback, each in a thread with a loop of its own. What goes wrong says a function
that each is given, by whom it is asked to reach, and for which time. ``accepted`` is the witness:
what really went out, and how often; ``began_at`` tells when those calls came in.
"""

from __future__ import annotations

import asyncio
import base64
import email
import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session

Fault = Callable[[str, int], str]
# How old a signed call may be: older ones could be a recording that is played again.
TOLERANCE_SECONDS: Final = 300


def never(who: str, times: int) -> str:
    return ""


class Server:
    """A loop in a thread; subclasses say what it serves."""

    # How long what hangs does; None: until ``release``.
    hang_seconds: float | None = None

    def __init__(self, fault: Fault = never, *, latency: float = 0.0) -> None:
        self.fault, self.latency = fault, latency
        self.accepted: Counter[str] = Counter()
        self.began_at: dict[str, float] = {}
        self.seen: Counter[str] = Counter()
        self.total = self.twice = self.hanging = 0
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._released = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, wanted: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await wanted

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(20)

    def release(self) -> None:
        """End all hanging; nothing hangs any more."""
        self._loop.call_soon_threadsafe(self._released.set)

    async def hang(self) -> None:
        self.hanging += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), self.hang_seconds)

    def accept(self, key: str, began_at: float = 0.0) -> None:
        self.accepted[key] += 1
        self.began_at[key] = began_at
        self.total += 1
        self.twice += self.accepted[key] == 2

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError


class WebServer(Server):
    """One that serves HTTP; subclasses say which routes."""

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
    """Say nothing; with a reset, if it is to be one."""
    if request.transport is not None and reset:
        own: socket.socket = request.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.abort()
    elif request.transport is not None:
        request.transport.close()
    return web.Response()


class FakeSmtp(Server):
    """An SMTP server. Keys are the notifications' ids, out of their Message-IDs.

    The fault of a recipient: ``450``, ``550``: refuses it. ``drop``: hangs up before DATA.
    ``hang``: says nothing to it. ``refuse-data``: 554 after the body. ``drop-after``,
    ``hang-after``: accepts, and hangs up or hangs without an answer.
    """

    async def _start(self) -> None:
        self.connections = 0
        # Of each open connection: when its mail began, and what is to go wrong with it.
        self._mails: dict[SMTP, tuple[float, str]] = {}
        self._server = await self._loop.create_server(self._session, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def _session(self) -> SMTP:
        self.connections += 1
        return SMTP(self, hostname="fake.example", enable_SMTPUTF8=True)

    async def _stop(self) -> None:
        self._server.close()
        for session in self._mails:
            _abort(session)

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self._mails[server] = time.time(), ""
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.seen[f"<{address}>"] += 1
        fault = self.fault(address, self.seen[f"<{address}>"])
        self._mails[server] = self._mails[server][0], fault
        if fault.isdigit():
            return f"{fault} no mailbox {address}"
        if fault == "hang":
            await self.hang()
        if fault == "drop":
            _abort(server)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        began_at, fault = self._mails[server]
        content = envelope.original_content or b""
        key = email.message_from_bytes(content)["Message-ID"].strip("<>").partition("@")[0]
        self.seen[key] += 1
        if fault == "refuse-data":
            return "554 refused"
        await asyncio.sleep(self.latency)
        self.accept(key, began_at)
        if fault == "drop-after":
            _abort(server)
        if fault == "hang-after":
            await self.hang()
        return "250 accepted"


def _abort(server: SMTP) -> None:
    if isinstance(server.transport, asyncio.Transport):
        server.transport.abort()


class FakeSms(WebServer):
    """An HTTP provider that takes JSON, and sends once for each idempotency key.

    The fault of a number: ``503``: any status, nothing sent. ``drop``: hangs up unanswered, nothing
    sent. ``drop-after``, ``hang-after``: sends, and does not answer. ``blocked``: 200 with that
    code in its answer.
    """

    is_down = False

    def _routes(self) -> list[web.RouteDef]:
        return [web.post("/messages", self._post)]

    async def _post(self, request: web.Request) -> web.StreamResponse:
        began_at, fields = time.time(), json.loads(await request.read())
        key = request.headers["Idempotency-Key"]
        self.seen[key] += 1
        fault = "503" if self.is_down else self.fault(fields["to"], self.seen[key])
        if fault.isdigit():
            return web.json_response({}, status=int(fault), headers={"Retry-After": "0"})
        if fault == "blocked":
            return web.json_response({"code": "blocked", "to": fields["to"]})
        if fault != "drop" and key not in self.began_at:
            self.began_at[key] = began_at
            await asyncio.sleep(self.latency)
            self.accept(key, began_at)
        if fault == "hang-after":
            await self.hang()
        return hang_up(request) if fault else web.json_response({"id": key}, status=201)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that arrived, and how it was answered; instants are Unix seconds."""

    path: str
    body: Any
    webhook_id: str
    arrived_at: float
    answered_at: float
    answer: str

    @property
    def succeeded(self) -> bool:
        return self.answer.startswith("2")


# A rule returns what to answer to the n-th call (from 1) with this body: a status, possibly
# with Retry-After in seconds as in "429 2", or "reset", "hang", or "drop-after" it has acted.
Rule = Callable[[Any, int], str]


class Receiver(WebServer):
    """Verifies, witnesses and misbehaves; ``calls`` are those with a valid signature, in order."""

    hang_seconds = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.secret = ""
        self.calls: list[Call] = []
        self.unsigned = 0
        # By path.
        self.rules: dict[str, Rule] = {}

    def calls_of(self, path: str) -> list[Call]:
        return [each for each in list(self.calls) if each.path == path]

    def _routes(self) -> list[web.RouteDef]:
        return [web.post("/{path:.*}", self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        arrived_at, body = time.time(), await request.read()
        if not is_signed(self.secret, request.headers, body):
            self.unsigned += 1
            return web.Response(status=401)
        value, id_ = json.loads(body), request.headers["webhook-id"]
        self.seen[f"{request.path} {id_}"] += 1
        answer = self.rules[request.path](value, self.seen[f"{request.path} {id_}"])
        if answer == "hang":
            await self.hang()
        call = Call(request.path, value, id_, arrived_at, time.time(), answer)
        if call.succeeded or answer == "drop-after":
            self.accepted[id_] = 1  # it acts once for each id, as it is told to
            self.began_at.setdefault(id_, arrived_at)
        self.calls.append(call)
        if answer in ("reset", "hang", "drop-after"):
            return hang_up(request, reset=True)
        return _response(answer)


def _response(answer: str) -> web.Response:
    status, _, retry_after = answer.partition(" ")
    headers = {"Retry-After": retry_after} if retry_after else {}
    if status == "302":
        headers["Location"] = "http://169.254.169.254/latest/meta-data/"
    return web.Response(status=int(status), headers=headers)


def is_signed(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Verify as Standard Webhooks 1.0 describes it, for software that somebody else wrote."""
    sent_at = headers.get("webhook-timestamp", "")
    if not sent_at.isdecimal() or abs(time.time() - int(sent_at)) > TOLERANCE_SECONDS:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{headers.get('webhook-id', '')}.{sent_at}.".encode() + body
    wanted = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    given = headers.get("webhook-signature", "").split()
    return any(hmac.compare_digest(each.removeprefix("v1,"), wanted) for each in given)
