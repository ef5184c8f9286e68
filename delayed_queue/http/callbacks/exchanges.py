"""One callback on the wire: what it may dial, how much it may read, and how far it got."""

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
# What the body, the headers, interim answers and TLS may have together.
ALLOWANCE: Final = BODY_BYTES + 80 * 1024
# So small that aiohttp stops a long body before the allowance ends.
CHUNK: Final = 16 * 1024
# Connections kept for the next callback to the same host; processes may have few files.
MAX_IDLE: Final = 100


class SpoiledConnection(ClientConnectionError):
    """A pooled connection that cannot be used again; nothing was sent on it."""


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

    @property
    def is_refused(self) -> bool:
        """Return whether the answer was not 2xx, whatever became of its body."""
        return self.status is not None and not 200 <= self.status <= 299

    async def pass_gate(self) -> None:
        """Wait for leave to send, which takes nothing of the receiver's time."""
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
        """Return whether it had leave to send, and was too late for it: nothing has left."""
        return self.leave is not None and self.leave.is_late

    def end_leave(self) -> None:
        if self.leave is not None:
            self.leave.end()

    def finish(self) -> None:
        """Let nothing more be read for this exchange."""
        self.end_leave()
        # By now the connection may be that of another one, out of the pool.
        if self.socket is None or self.socket.user is not self:
            return
        self.socket.user, self.socket.allowance = None, 0
        is_read = self.content is not None and self.content.is_eof()
        if self.transport is not None and not is_read:
            # Not close(), as aiohttp did: that waits for a receiver that reads nothing.
            self.transport.abort()

    def cut_off(self) -> None:
        """End the reading of a body whose connection is closed.

        After nonsense between its chunks aiohttp closes, and leaves whoever reads waiting.
        """
        content = self.content
        if content is not None and not content.is_eof() and content.exception() is None:
            content.set_exception(ClientPayloadError())


# The resolver, the sockets and the request are made by aiohttp, in our task or in tasks that
# inherit its context.
current: ContextVar[Exchange] = ContextVar("current")


class GuardedResolver(AbstractResolver):
    """A resolver whose answers have passed the guard: aiohttp dials these and asks no other."""

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
    """A socket that reads no more than it was allowed to, whatever is sent to it.

    Between callbacks the allowance is nothing: what arrives then is the answer to no request, and
    must not be taken for that to the next one.
    """

    __slots__ = ("_opened", "address", "allowance", "is_used", "leave", "user")

    def __init__(self, info: AddrInfoType, opened: MutableMapping[int, MeteredSocket]) -> None:
        super().__init__(*info[:3])
        self.address = str(info[4][0])
        self.allowance = ALLOWANCE
        self.is_used = False
        self.user: Exchange | None = None
        self.leave: Leave | None = None
        self._opened = opened
        opened[self.fileno()] = self

    def lend(self, user: Exchange) -> None:
        """Let this exchange read as much as one may."""
        self.user, self.allowance, self.is_used = user, ALLOWANCE, True
        self.leave = user.leave

    def send(self, data: Any, flags: int = 0, /) -> int:
        return self._sent(partial(super().send, data, flags))

    def sendmsg(self, *args: Any) -> int:
        return self._sent(partial(super().sendmsg, *args))

    def _sent(self, send: Callable[[], int]) -> int:
        """Send the first bytes of a callback by its leave, and the others freely."""
        if self.leave is None:
            return send()
        sent = self.leave.send(send)
        self.leave = None
        return sent

    def has_input(self) -> bool:
        """Return whether something arrived that the event loop has not read yet, if only the end.

        A POST that is written after the end is lost, and nobody knows whether it was handled.
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
        # One byte at least: that the other side has closed must be noticed.
        return max(1, min(wanted, CHUNK, self.allowance))

    def _count(self, got: int) -> None:
        """Take what was read from the allowance; nothing was read is the end."""
        if self.user is not None:
            self.user.is_ended = got == 0
            self.user.is_overrun = got > self.allowance
        if got > self.allowance:
            raise OSError(errno.EMSGSIZE, "more was sent than is read")
        self.allowance -= got


class Sockets:
    """The open sockets of a client; makes each, and only for an address that the guard permits."""

    def __init__(self) -> None:
        self.opened: dict[int, MeteredSocket] = {}
        self.in_use = 0

    def __call__(self, info: AddrInfoType) -> MeteredSocket:
        exchange = current.get()
        exchange.address = str(info[4][0])
        # The resolver asked already for the addresses of names; those in urls come only here.
        check_addresses(exchange.host, [exchange.address], exchange.policy)
        return MeteredSocket(info, self.opened)

    @property
    def has_enough_idle(self) -> bool:
        return len(self.opened) - self.in_use >= MAX_IDLE

    def is_pooled(self, connection: Connection) -> bool:
        """Return whether the connection has carried a callback before."""
        transport = connection.transport
        return transport is not None and (
            self.opened[transport.get_extra_info("socket").fileno()].is_used
        )

    def of(self, connection: Connection) -> MeteredSocket:
        """Return the socket of a connection that can be written to."""
        transport, protocol = connection.transport, connection.protocol
        if transport is None or protocol is None:
            raise ServerDisconnectedError
        found = self.opened[transport.get_extra_info("socket").fileno()]
        if found.is_used and (protocol.should_close or found.has_input()):
            raise SpoiledConnection
        if self.has_enough_idle:
            protocol.force_close()
        return found


# What Sentry's integration of aiohttp adds to the requests of any session: receivers are strangers,
# and are not told of the project's release, environment and traces.
_ADDED: Final = ("sentry-trace", "baggage")


class GuardedRequest(ClientRequest):
    """A request that marks the exchange when it is written: from then on it may have an effect.

    It has our headers, and none that others have added.
    """

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
