"""Third parties as they are: they refuse, delay, hang, hang up, and remember what they got.

Real servers on loopback, each in a thread with a loop of its own. How one behaves is asked for in
what it is sent: an address ``550+ada@example.org``, a text ``[500] Your code is 7``. After a comma
comes how often: ``[500,1]`` fails once for each notification. ``accepted`` is the witness: what
really went out, and how often; ``began_at`` tells when those calls came in. Subclasses may have
reasons of their own to misbehave.
"""

from __future__ import annotations

import asyncio
import base64
import email
import hashlib
import hmac
import json
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session

_ASKED: Final = re.compile(r"\[([\w-]+)(?:,(\d+))?\]")


class Server:
    """A loop in a thread; subclasses say what it serves."""

    # How long what hangs does; None: until ``release``.
    hang_seconds: float | None = None

    def __init__(self, *, latency: float = 0.0) -> None:
        self.latency = latency
        self.accepted: Counter[str] = Counter()
        self.began_at: dict[str, float] = {}
        self.seen: Counter[str] = Counter()
        self.on_accepted: Callable[[str], None] = lambda key: None
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
        self._call(self._release())
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, wanted: Awaitable[Any]) -> Any:
        async def run() -> Any:
            return await wanted

        found: Future[Any] = asyncio.run_coroutine_threadsafe(run(), self._loop)
        return found.result(20)

    def release(self) -> None:
        """End all hanging; nothing hangs any more."""
        self._call(self._release())

    async def _release(self) -> None:
        self._released.set()

    async def hang(self) -> None:
        self.hanging += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), self.hang_seconds)

    def accept(self, key: str, began_at: float = 0.0) -> None:
        self.accepted[key] += 1
        self.began_at[key] = began_at
        self.total += 1
        self.twice += self.accepted[key] == 2
        self.on_accepted(key)

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


def asked_of(text: str, times: int) -> str:
    """Return the behaviour that the text asks for, at this many-th time."""
    found = _ASKED.match(text)
    if found is None or times > int(found[2] or 2**31):
        return ""
    return found[1]


class FakeSmtp(Server):
    """An SMTP server. Keys are the notifications' ids, out of their Message-IDs.

    ``450+…``, ``550+…``: refuses the recipient. ``drop+…``: hangs up before DATA. ``hang+…``: says
    nothing to it. ``refuse-data+…``: 554 after the body. ``drop-after+…``, ``hang-after+…``:
    accepts, and hangs up or hangs without an answer.
    """

    async def _start(self) -> None:
        self.connections = 0
        self._open: set[SMTP] = set()
        self._began: dict[SMTP, float] = {}
        self._server = await self._loop.create_server(self._session, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def at_recipient(self, address: str) -> str:
        """Return how to behave to this recipient's RCPT; once for each time it comes."""
        return _of_address(address)

    def at_data(self, address: str) -> str:
        """Return how to behave to the body of a mail to this recipient."""
        return _of_address(address)

    def _session(self) -> SMTP:
        self.connections += 1
        return SMTP(self, hostname="fake.example", enable_SMTPUTF8=True)

    async def _stop(self) -> None:
        self._server.close()
        for session in self._open:
            hang_up(session)

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self._open.add(server)
        self._began[server] = time.time()
        envelope.mail_from = address
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        behaviour = self.at_recipient(address)
        if behaviour in ("450", "550", "421"):
            return f"{behaviour} no mailbox {address}"
        if behaviour == "hang":
            await self.hang()
        if behaviour == "drop":
            hang_up(server)
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        behaviour = self.at_data(envelope.rcpt_tos[0])
        content = envelope.original_content or b""
        key = email.message_from_bytes(content)["Message-ID"].strip("<>").partition("@")[0]
        self.seen[key] += 1
        if behaviour == "refuse-data":
            return "554 refused"
        await asyncio.sleep(self.latency)
        self.accept(key, self._began[server])
        if behaviour == "drop-after":
            hang_up(server)
        if behaviour == "hang-after":
            await self.hang()
        return "250 accepted"


def hang_up(server: SMTP) -> None:
    if isinstance(server.transport, asyncio.Transport):
        server.transport.abort()


def _of_address(address: str) -> str:
    return address.partition("@")[0].rpartition("+")[0]


class FakeSms(WebServer):
    """An HTTP provider that takes JSON or a form, and sends once for each idempotency key.

    ``[503]``: any status, nothing sent. ``[429]``: the same, with ``Retry-After: 0``. ``[drop]``:
    hangs up unanswered, nothing sent. ``[drop-after]``, ``[hang-after]``: sends, and does not
    answer. ``[hang]``: neither. ``[wait]``: sends when released. ``[blocked]``: 200 with that
    code in its answer.
    """

    def __init__(self, *, latency: float = 0.0, has_keys: bool = True) -> None:
        super().__init__(latency=latency)
        self.has_keys = has_keys
        self.is_down = False
        self.delay_of_failures = 0.0
        self._answers: dict[str, dict[str, Any]] = {}
        # Of providers that tell where they are: stage and notification.
        self.reached: Counter[tuple[str, str]] = Counter()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/messages"

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.post("/messages", self._post),
            web.post("/reached/{stage}", self._reached),
        ]

    def behaviour(self, fields: dict[str, str], times: int) -> str:
        """Return how to behave to this message, that comes for this many-th time."""
        return asked_of(fields["text"], times)

    async def _post(self, request: web.Request) -> web.StreamResponse:
        began_at = time.time()
        fields = await self._fields(request)
        key = request.headers.get("Idempotency-Key", "") if self.has_keys else ""
        name = key or fields["reference"]
        self.seen[name] += 1
        behaviour = self.behaviour(fields, self.seen[name])
        if self.is_down:
            await asyncio.sleep(self.delay_of_failures)
            return web.json_response({"code": "down"}, status=503)
        if behaviour.isdigit():
            return web.json_response({}, status=int(behaviour), headers={"Retry-After": "0"})
        if behaviour == "blocked":
            return web.json_response({"code": "blocked", "to": fields["to"]})
        if behaviour in ("drop", "hang"):
            return await self._fall_silent(request, behaviour)
        if behaviour == "wait":
            await self.hang()
        answer = await self._send(key, name, began_at)
        if behaviour in ("drop-after", "hang-after"):
            return await self._fall_silent(request, behaviour)
        return web.json_response(answer, status=201)

    async def _reached(self, request: web.Request) -> web.Response:
        """Hang a provider that tells where it is, where the text asks for it."""
        fields = await self._fields(request)
        at = (request.match_info["stage"], fields["reference"])
        self.reached[at] += 1
        if asked_of(fields["text"], self.reached[at]) == at[0]:
            await self.hang()
        return web.Response()

    async def _fields(self, request: web.Request) -> dict[str, str]:
        if request.content_type == "application/json":
            found: dict[str, str] = json.loads(await request.read())
            return found
        return {name: str(value) for name, value in (await request.post()).items()}

    async def _send(self, key: str, name: str, began_at: float) -> dict[str, Any]:
        if key in self._answers:
            return self._answers[key]
        answer = {"id": f"sms-{len(self.accepted) + 1}"}
        if key:
            self._answers[key] = answer
        await asyncio.sleep(self.latency)
        self.accept(name, began_at)
        return answer

    async def _fall_silent(self, request: web.Request, behaviour: str) -> web.StreamResponse:
        if behaviour.startswith("hang"):
            await self.hang()
        if request.transport is not None:
            request.transport.close()
        return web.Response()


class FakeHook(WebServer):
    """A webhook. What it does stands in its path: ``/503,1``, ``/drop-after,1``, ``/hang``."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[dict[str, str], bytes]] = []

    def url(self, behaviour: str = "") -> str:
        return f"http://127.0.0.1:{self.port}/{behaviour}"

    def _routes(self) -> list[web.RouteDef]:
        return [web.post("/{behaviour:.*}", self._post)]

    def behaviour(self, path: str, times: int) -> str:
        """Return how to behave to a call of this path, that comes for this many-th time."""
        return asked_of(f"[{path}]", times)

    async def _post(self, request: web.Request) -> web.Response:
        began_at = time.time()
        key = request.headers.get("webhook-id", "")
        self.seen[key] += 1
        behaviour = self.behaviour(request.match_info["behaviour"], self.seen[key])
        if behaviour.isdigit():
            return web.Response(status=int(behaviour))
        if behaviour == "hang":
            await self.hang()
        self.requests.append((dict(request.headers), await request.read()))
        self.accepted[key] = 1  # it acts once for each id, as it is told to
        self.began_at.setdefault(key, began_at)
        if behaviour == "drop-after" and request.transport is not None:
            request.transport.close()
        return web.Response()


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
# with Retry-After in seconds as in "429 2", or "reset" or "hang".
Rule = Callable[[Any, int], str]
# How old a signed call may be: older ones could be a recording that is played again.
TOLERANCE_SECONDS: Final = 300


class Receiver(WebServer):
    """Verifies, witnesses and misbehaves; ``calls`` are those with a valid signature, in order."""

    hang_seconds = 2.0

    def __init__(self) -> None:
        super().__init__()
        self.secret = ""
        self.calls: list[Call] = []
        self.unsigned = 0
        self.rules: dict[str, Rule] = {}

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

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
        self.calls.append(Call(request.path, value, id_, arrived_at, time.time(), answer))
        return _reset(request) if answer in ("hang", "reset") else _response(answer)


def _reset(request: web.Request) -> web.Response:
    """Say nothing, and so that the peer sees a reset."""
    if request.transport is not None:
        linger = struct.pack("ii", 1, 0)
        own: socket.socket = request.transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        request.transport.abort()
    return web.Response()


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
