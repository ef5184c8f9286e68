"""One callback on the wire: guarded addresses, bounded reading, and its progress."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from aiohttp import (
    AddrInfoType,
    ClientConnectionError,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ServerDisconnectedError,
    StreamReader,
)
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection

from delayed_queue.http.callbacks.gate import Leave
from delayed_queue.http.callbacks.guard import Policy, check_addresses

Enter = Callable[[], Awaitable[Leave]]

BODY_BYTES: Final = 16 * 1024
# Bytes beside the body: headers, interim answers, and TLS, which adds less than 1 %.
OVERHEAD: Final = 80 * 1024
# Bytes of one read: small enough that aiohttp stops a long body within the allowance.
CHUNK: Final = 16 * 1024
# Connections kept for the next callback to the same host; processes may have few files.
MAX_IDLE: Final = 100


class SpoiledConnection(ClientConnectionError):
    """A pooled connection that cannot be reused; nothing was sent on it."""


@dataclass(slots=True)
class Exchange:
    """The state of one callback."""

    policy: Policy
    sockets: Sockets
    host: str = ""
    is_resolved: bool = False
    is_sent: bool = False
    is_ended: bool = False
    is_overrun: bool = False
    address: str = ""
    socket: MeteredSocket | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    transport: asyncio.Transport | None = None
    enter: Enter | None = None
    leave: Leave | None = None
    deadline: asyncio.Timeout | None = None
    content: StreamReader | None = None
    body: bytearray = field(default_factory=bytearray)
    most: int = BODY_BYTES

    @property
    def is_refused(self) -> bool:
        """True if the status is not 2xx, even if the body failed."""
        return self.status is not None and not 200 <= self.status <= 299

    async def pass_gate(self) -> None:
        """Wait for leave to send; this time does not count against the receiver."""
        self.end_leave()
        if self.enter is None or self.deadline is None:
            return
        loop, until = asyncio.get_running_loop(), self.deadline.when()
        began = loop.time()
        self.deadline.reschedule(None)
        self.leave = await self.enter()
        self.deadline.reschedule(None if until is None else until + loop.time() - began)

    @property
    def is_withdrawn(self) -> bool:
        """True if its leave expired before the first byte: nothing was sent."""
        return self.leave is not None and self.leave.is_late

    def end_leave(self) -> None:
        if self.leave is not None:
            self.leave.end()

    def finish(self) -> None:
        """Stop reading for this exchange."""
        self.end_leave()
        # Another exchange may already use the pooled connection.
        if self.socket is None or self.socket.user is not self:
            return
        self.socket.user, self.socket.allowance = None, 0
        is_read = self.content is not None and self.content.is_eof()
        if self.transport is not None and not is_read:
            # close() would wait for a receiver that reads nothing.
            self.transport.abort()

    def cut_off(self) -> None:
        """Stop reading a body whose connection is closed.

        After an invalid chunk aiohttp closes the connection, but does not wake the reader.
        """
        content = self.content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(ClientPayloadError())


# aiohttp makes the resolver, the sockets and the request, in this task or in tasks that inherit
# its context.
current: ContextVar[Exchange] = ContextVar("current")


class GuardedResolver(AbstractResolver):
    """A resolver whose answers have passed the guard; aiohttp dials no others."""

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        exchange = current.get()
        answers = await self._resolver.resolve(host, port, family)
        exchange.is_resolved = True
        check_addresses(exchange.host, [answer["host"] for answer in answers], exchange.policy)
        return answers

    async def close(self) -> None:
        await self._resolver.close()


class MeteredSocket(socket.socket):
    """A socket that reads at most its allowance.

    Between callbacks the allowance is zero: bytes that arrive then must not be read as the answer
    to the next request.
    """

    __slots__ = ("_opened", "address", "allowance", "is_used", "leave", "user")

    def __init__(self, info: AddrInfoType, opened: MutableMapping[int, MeteredSocket]) -> None:
        super().__init__(*info[:3])
        self.address = str(info[4][0])
        self.allowance = BODY_BYTES + OVERHEAD
        self.is_used = False
        self.user: Exchange | None = None
        self.leave: Leave | None = None
        self._opened = opened
        opened[self.fileno()] = self

    def lend(self, user: Exchange) -> None:
        """Give this exchange a full allowance."""
        self.user, self.is_used = user, True
        self.allowance = user.most + user.most // 100 + OVERHEAD
        self.leave = user.leave

    def send(self, data: Any, flags: int = 0, /) -> int:
        return self._sent(partial(super().send, data, flags))

    def sendmsg(self, *args: Any) -> int:
        return self._sent(partial(super().sendmsg, *args))

    def _sent(self, send: Callable[[], int]) -> int:
        """Send the first bytes of a callback under its leave, the others without."""
        if self.leave is None:
            return send()
        sent = self.leave.send(send)
        self.leave = None
        return sent

    def has_input(self) -> bool:
        """Return whether data or the end of the stream is waiting to be read.

        A POST written after the end would be lost, without knowing whether it was handled.
        """
        try:
            super().recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        try:
            data = super().recv(self._most(bufsize), flags)
        except ConnectionError:
            self._count(0)
            raise
        self._count(len(data))
        return data

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0, /) -> int:
        try:
            got = super().recv_into(buffer, self._most(nbytes or len(buffer)), flags)
        except ConnectionError:
            self._count(0)
            raise
        self._count(got)
        return got

    def close(self) -> None:
        self._opened.pop(self.fileno(), None)
        super().close()
        if self.user is not None:
            self.user.cut_off()

    def _most(self, wanted: int) -> int:
        # At least one byte, to notice that the other side has closed.
        return max(1, min(wanted, CHUNK, self.allowance))

    def _count(self, got: int) -> None:
        """Subtract the read bytes from the allowance; zero bytes mean the end."""
        if self.user is not None:
            self.user.is_ended = got == 0
            self.user.is_overrun = got > self.allowance
        if got > self.allowance:
            raise OSError(errno.EMSGSIZE, "more was sent than is read")
        self.allowance -= got


class Sockets:
    """The open sockets of a client; each is made for an address that the guard permits."""

    def __init__(self) -> None:
        self.opened: dict[int, MeteredSocket] = {}
        self.in_use = 0

    def __call__(self, info: AddrInfoType) -> MeteredSocket:
        exchange = current.get()
        exchange.address = str(info[4][0])
        # The resolver has checked the addresses of names; addresses in urls are checked here.
        check_addresses(exchange.host, [exchange.address], exchange.policy)
        return MeteredSocket(info, self.opened)

    @property
    def has_enough_idle(self) -> bool:
        return len(self.opened) - self.in_use >= MAX_IDLE

    def is_pooled(self, connection: Connection) -> bool:
        """Return whether the connection has been used before."""
        transport = connection.transport
        return transport is not None and (
            self.opened[transport.get_extra_info("socket").fileno()].is_used
        )

    def of(self, connection: Connection) -> MeteredSocket:
        """Return the socket of a usable connection."""
        transport, protocol = connection.transport, connection.protocol
        if transport is None or protocol is None:
            raise ServerDisconnectedError
        found = self.opened[transport.get_extra_info("socket").fileno()]
        if found.is_used and (protocol.should_close or found.has_input()):
            raise SpoiledConnection
        if self.has_enough_idle:
            protocol.force_close()
        return found


# Headers that Sentry's integration of aiohttp adds to every request. Receivers are strangers, who
# must not learn the project's release, environment and traces.
_ADDED: Final = ("sentry-trace", "baggage")


class GuardedRequest(ClientRequest):
    """A request that marks the exchange as sent, and has no headers added by integrations."""

    async def send(self, conn: Connection) -> ClientResponse:
        for name in _ADDED:
            self.headers.popall(name, None)
        exchange = current.get()
        is_pooled = exchange.sockets.is_pooled(conn)
        await exchange.pass_gate()
        if is_pooled and conn.transport is None:  # closed while this waited
            raise SpoiledConnection
        exchange.socket = exchange.sockets.of(conn)
        exchange.socket.lend(exchange)
        exchange.address, exchange.transport = exchange.socket.address, conn.transport
        exchange.is_sent = True
        return await super().send(conn)
