"""Third parties that misbehave on request; each message holds its fault.

An address ``550+ada@example.org``, a text ``[500] Your code is 7``, a path ``/503,1``. The number
after a comma limits the faults: ``[500,1]`` fails once for each notification.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiosmtpd.smtp import SMTP, Envelope, Session

from example_project import fakes
from example_project.fakes import hang_up

__all__ = ["FakeHook", "FakeSms", "FakeSmtp", "Server"]

_ASKED: Final = re.compile(r"\[([\w-]+)(?:,(\d+))?\]")


def asked_of(text: str, times: int) -> str:
    """Return the behaviour that the text requests, at this many-th time."""
    found = _ASKED.match(text)
    if found is None or times > int(found[2] or 2**31):
        return ""
    return found[1]


class Server(fakes.Server):
    """A server that also counts hanging calls and all accepted ones."""

    hanging = total = 0

    async def hang(self) -> None:
        self.hanging += 1
        await super().hang()

    def accept(self, key: str, began_at: float) -> None:
        super().accept(key, began_at)
        self.total += 1


class WebServer(fakes.WebServer, Server):
    """A server that speaks HTTP."""


class FakeSmtp(fakes.FakeSmtp, Server):
    """An SMTP server with the faults of ``fakes.FakeSmtp``, before the ``+`` of an address.

    And ``refuse-data``: 554 after the body; ``hang-after``: accepts it, and does not reply.
    """

    connections = 0
    # Connections that are open now, and those that were refused with 421.
    open = refused = 0

    def __init__(
        self, *, latency: float = 0.0, per_session: int = 0, code: int = 421, room: int = 0,
        phase: str = "MAIL",
    ) -> None:  # fmt: skip
        super().__init__(_of_address, latency=latency)
        # Connections at a time; 0 is no limit.
        self.room = room
        # Messages after which a session takes no more; then the reply, and what it replies to.
        self.per_session, self.code, self.phase = per_session, code, phase
        self.taken: Counter[SMTP] = Counter()
        self.contents: deque[bytes] = deque(maxlen=100)
        self.recipients: deque[list[str]] = deque(maxlen=100)

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        self.taken[server] += 1
        if end := self._end_of(server, "MAIL"):
            return end
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    def close_sessions(self) -> None:
        """Hang up on all clients; return once they could notice."""
        asyncio.run_coroutine_threadsafe(self._close_sessions(), self._loop).result(10)

    async def _close_sessions(self) -> None:
        for session in self.taken:
            transport: Any = session.transport
            if transport is not None:
                transport.abort()

    def _end_of(self, server: SMTP, phase: str) -> str:
        is_over = 0 < self.per_session < self.taken[server] and phase == self.phase
        return f"{self.code} too many messages in this session" if is_over else ""

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        end = self._end_of(server, "RCPT")
        return end or await super().handle_RCPT(server, session, envelope, address, options)

    def _session(self) -> SMTP:
        self.connections += 1
        return Crowded(self) if self.room else super()._session()

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        if end := self._end_of(server, "DATA"):
            return end
        asked = _of_address(envelope.rcpt_tos[-1], 1)
        if asked == "refuse-data":
            return "554 refused"
        self.contents.append(envelope.original_content or b"")
        self.recipients.append(list(envelope.rcpt_tos))
        answer = await super().handle_DATA(server, session, envelope)
        if asked == "hang-after":
            await self.hang()
        return answer


class Crowded(SMTP):
    """A session that is refused if its server has no room."""

    def __init__(self, server: FakeSmtp) -> None:
        super().__init__(server, hostname="fake.example", enable_SMTPUTF8=True)
        self.fake = server

    def connection_made(self, transport: Any) -> None:
        self.fake.open += 1
        if self.fake.open <= self.fake.room:
            super().connection_made(transport)
        else:
            self.fake.refused += 1
            transport.write(b"421 4.3.2 too many connections\r\n")
            transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.fake.open -= 1
        if self.transport is not None:
            super().connection_lost(error)


def _of_address(address: str, times: int) -> str:
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
        self.on_accepted: Callable[[str], None] = lambda key: None
        self._answers: dict[str, dict[str, Any]] = {}
        # For providers that report their stage: stage and notification.
        self.reached: Counter[tuple[str, str]] = Counter()

    @property
    def url(self) -> str:
        return self.at("/messages")

    def _routes(self) -> list[web.RouteDef]:
        return [web.post("/messages", self._post), web.post("/reached/{stage}", self._reached)]

    async def _post(self, request: web.Request) -> web.StreamResponse:
        began_at = time.time()
        fields = await _fields(request)
        key = request.headers.get("Idempotency-Key", "") if self.has_keys else ""
        name = key or fields["reference"]
        self.seen[name] += 1
        behaviour = asked_of(fields["text"], self.seen[name])
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
        """Hang a provider that reports its stage, if the text requests it."""
        fields = await _fields(request)
        at = (request.match_info["stage"], fields["reference"])
        self.reached[at] += 1
        if asked_of(fields["text"], self.reached[at]) == at[0]:
            await self.hang()
        return web.Response()

    async def _send(self, key: str, name: str, began_at: float) -> dict[str, Any]:
        if key in self._answers:
            return self._answers[key]
        answer = {"id": f"sms-{len(self.accepted) + 1}"}
        if key:
            self._answers[key] = answer
        await asyncio.sleep(self.latency)
        self.accept(name, began_at)
        self.on_accepted(name)
        return answer

    async def _fall_silent(self, request: web.Request, behaviour: str) -> web.StreamResponse:
        if behaviour.startswith("hang"):
            await self.hang()
        return hang_up(request)


async def _fields(request: web.Request) -> dict[str, str]:
    if request.content_type == "application/json":
        found: dict[str, str] = json.loads(await request.read())
        return found
    return {name: str(value) for name, value in (await request.post()).items()}


class FakeHook(WebServer):
    """A webhook. Its path holds its behaviour: ``/503,1``, ``/drop-after,1``, ``/hang``."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[dict[str, str], bytes]] = []

    def url(self, behaviour: str = "") -> str:
        return self.at(f"/{behaviour}")

    def _routes(self) -> list[web.RouteDef]:
        return [web.post("/{behaviour:.*}", self._post)]

    async def _post(self, request: web.Request) -> web.Response:
        key = request.headers.get("webhook-id", "")
        self.seen[key] += 1
        behaviour = asked_of(f"[{request.match_info['behaviour']}]", self.seen[key])
        if behaviour.isdigit():
            return web.Response(status=int(behaviour))
        if behaviour == "hang":
            await self.hang()
        self.requests.append((dict(request.headers), await request.read()))
        self.accepted[key] = 1  # it acts once for each id, as the guide requires
        return hang_up(request) if behaviour == "drop-after" else web.Response()
