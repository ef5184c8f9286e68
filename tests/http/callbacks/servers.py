"""Receivers on loopback that answer in every wrong way, each in its own thread and loop.

``Receiver(behaviour)`` is a context manager. A behaviour is an async function; it is called with
each request that was read, and writes its response.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

TIMEOUT = 30.0


@dataclass(frozen=True)
class Received:
    """A request with the number of its connection, and its own number on that."""

    line: str
    headers: Mapping[str, str]
    body: bytes
    connection: int
    number: int

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


@dataclass
class Wire:
    """One connection, as a behaviour uses it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    written: int = 0

    async def write(self, data: bytes) -> None:
        # Under TLS drain() reports a lost connection only after one iteration of the loop.
        await asyncio.sleep(0)
        self.writer.write(data)
        self.written += len(data)
        await self.writer.drain()

    async def answer(
        self, status: int = 200, body: bytes = b"ok", headers: Mapping[str, str] | None = None
    ) -> None:
        await self.write(answered(status, body, headers))

    async def until_read(self) -> None:
        """Return once the client has read all that was written, or has gone."""
        while _unread(self.writer.get_extra_info("peername")[1]):
            await asyncio.sleep(0.001)

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        found = self.writer.get_extra_info("socket")
        found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def _unread(port: int) -> int:
    """Return the number of bytes that the socket with this local port has not read yet."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.rpartition(":")[2], 16) == port:
            return int(queues.rpartition(":")[2], 16)
    return 0


Behaviour = Callable[[Wire, Received], Awaitable[None]]


def answered(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Receiver:
    """A server that records requests and answers as its behaviour does.

    ``unread`` is the behaviour of connections whose request is not read.
    """

    def __init__(
        self, behaviour: Behaviour | None = None, *, host: str = "127.0.0.1", port: int = 0,
        tls: ssl.SSLContext | None = None, unread: Behaviour | None = None,
    ) -> None:  # fmt: skip
        self.behaviour = behaviour or answering()
        self.unread = unread
        self.host, self.port, self._tls = host, port, tls
        self.requests: list[Received] = []
        self.connections = 0
        self.written = 0
        self._changed = threading.Condition()
        self._wires: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="receiver", daemon=True)

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{self.host}:{self.port}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(TIMEOUT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    def wait_for_requests(self, number: int) -> list[Received]:
        """Return the requests as soon as ``number`` of them have arrived."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= number, TIMEOUT)
            return list(self.requests)

    def close_connections(self) -> None:
        """Close the open connections, and return once they have closed."""
        asyncio.run_coroutine_threadsafe(self._close_connections(), self._loop).result(TIMEOUT)

    def write_to_all(self, data: bytes) -> None:
        """Write to all open connections without a request."""
        asyncio.run_coroutine_threadsafe(self._write_to_all(data), self._loop).result(TIMEOUT)

    # In the thread

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda loop, context: None)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, self.host, self.port, ssl=self._tls, limit=2**20)
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for writer in self._wires:
            writer.transport.abort()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(_turns(10))
        self._loop.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._wires.add(writer)
        wire = Wire(reader, writer)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._converse(wire, self.connections)
        finally:
            self.written += wire.written
            self._wires.discard(writer)
            writer.close()

    async def _converse(self, wire: Wire, connection: int) -> None:
        if self.unread is not None:
            await self.unread(wire, Received("", {}, b"", connection, 1))
            return
        for number in count(1):
            request = await read_request(wire.reader, connection, number)
            with self._changed:
                self.requests.append(request)
                self._changed.notify_all()
            await self.behaviour(wire, request)
            if wire.writer.is_closing():
                return

    async def _close_connections(self) -> None:
        for writer in list(self._wires):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _write_to_all(self, data: bytes) -> None:
        for writer in self._wires:
            writer.write(data)
            await writer.drain()


async def _turns(number: int) -> None:
    """Let the loop run: transports close their sockets an iteration or two after close()."""
    for _ in range(number):
        await asyncio.sleep(0)


async def read_request(reader: asyncio.StreamReader, connection: int, number: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (each.partition(": ") for each in rest)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(line, headers, body, connection, number)


# Behaviours: the good ones


def answering(
    status: int = 200, body: bytes = b"ok", headers: Mapping[str, str] | None = None
) -> Behaviour:
    async def behave(wire: Wire, request: Received) -> None:
        await wire.answer(status, body, headers)

    return behave


def answering_in_turn(*behaviours: Behaviour) -> Behaviour:
    """Use each behaviour once, and then always the last."""
    turns = count()

    async def behave(wire: Wire, request: Received) -> None:
        await behaviours[min(next(turns), len(behaviours) - 1)](wire, request)

    return behave


def answering_after(seconds: float, status: int = 200) -> Behaviour:
    async def behave(wire: Wire, request: Received) -> None:
        await asyncio.sleep(seconds)
        await wire.answer(status)

    return behave


def redirecting(location: str, status: int = 302) -> Behaviour:
    return answering(status, headers={"Location": location})


def writing(*parts: bytes, close: bool = True) -> Behaviour:
    """Write these bytes as they are, so that each part is read alone."""

    async def behave(wire: Wire, request: Received) -> None:
        for part in parts:
            await wire.write(part)
            await wire.until_read()
        if close:
            wire.writer.close()
        else:
            await silent(wire, request)

    return behave


# Behaviours: the slow ones


async def silent(wire: Wire, request: Received) -> None:
    """Send no response, and keep the connection until the client closes it."""
    while await wire.reader.read(65_536):
        pass


async def forgetting(wire: Wire, request: Received) -> None:
    """Wait for a long time."""
    await asyncio.sleep(60)


def dripping(data: bytes, interval: float = 0.01) -> Behaviour:
    """Write byte by byte, so that no single read waits for long."""

    async def behave(wire: Wire, request: Received) -> None:
        for each in data:
            await wire.write(bytes([each]))
            await asyncio.sleep(interval)

    return behave


SLOW_HEADERS = dripping(b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 10_000)
DRIPPING_BODY = dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"." * 100_000)


# Behaviours: the large ones


def endless(head: bytes, again: bytes) -> Behaviour:
    """Write the head once, so that it is read alone, then the rest until the client disconnects."""

    async def behave(wire: Wire, request: Received) -> None:
        await wire.write(head)
        await wire.until_read()
        while True:
            await wire.write(again)

    return behave


_OK = b"HTTP/1.1 200 OK\r\n"
ENDLESS_BODY = endless(_OK + b"\r\n", b"x" * 65_536)
ENDLESS_CHUNKS = endless(
    _OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1000\r\n" + b"y" * 4096 + b"\r\n"
)
ENDLESS_CHUNK_EXTENSION = endless(
    _OK + b"Transfer-Encoding: chunked\r\n\r\n1;", b"extension=" + b"z" * 4096
)
ENDLESS_TRAILERS = endless(_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X-More: yes\r\n")
ENDLESS_HEADERS = endless(_OK, b"X-More: yes\r\n")
ENDLESS_HEADER = endless(_OK + b"X-Long: ", b"h" * 4096)
ENDLESS_STATUS_LINE = endless(b"HTTP/1.1 200 ", b"O" * 4096)
ENDLESS_CONTINUES = endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
HUGE_HEADERS = answering(headers={f"X-Header-{each}": "v" * 7000 for each in range(100)})


def gzip_bomb(megabytes: int = 16) -> Behaviour:
    body = gzip.compress(b"\0" * (megabytes * 2**20))
    return answering(body=body, headers={"Content-Encoding": "gzip"})


# Behaviours: the broken ones


async def closing(wire: Wire, request: Received) -> None:
    """Close without an answer."""
    wire.writer.close()


async def resetting(wire: Wire, request: Received) -> None:
    wire.reset()


def resetting_after(data: bytes) -> Behaviour:
    """Reset when these bytes have arrived: a reset discards unread bytes."""

    async def behave(wire: Wire, request: Received) -> None:
        await wire.write(data)
        await wire.until_read()
        wire.reset()

    return behave


RESETTING_MID_HEADERS = resetting_after(b"HTTP/1.1 200 OK\r\nX-Cut: sho")
RESETTING_MID_BODY = resetting_after(_OK + b"Content-Length: 100\r\n\r\nhalf")
LONGER_THAN_SENT = writing(_OK + b"Content-Length: 100\r\n\r\nshort")
LONGER_THAN_SENT_AND_OPEN = writing(_OK + b"Content-Length: 100\r\n\r\nshort", close=False)
SHORTER_THAN_SENT = writing(_OK + b"Content-Length: 2\r\n\r\nok, and more", close=False)
SHORTER_BY_PARTS = writing(_OK + b"Content-Length: 2\r\n\r\nok", b", and more", close=False)
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
GARBAGE_CHUNKS = writing(_CHUNKED + b"not a size\r\nbody\r\n")
GARBAGE_CHUNKS_BY_PARTS = writing(_CHUNKED, b"not a size\r\nbody\r\n")
CUT_CHUNKS = writing(_OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
BOTH_LENGTHS = writing(_OK + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
TWO_LENGTHS = writing(_OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nok!")
NEGATIVE_LENGTH = writing(_OK + b"Content-Length: -1\r\n\r\n")
HTTP_09 = writing(b"<html>hello</html>")
NO_HTTP = writing(b"SSH-2.0-OpenSSH_9.7\r\n")
CONTINUE_THEN_OK = writing(
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n"
    + answered(200, b"ok")
)
CONTINUE_THEN_NOTHING = writing(b"HTTP/1.1 100 Continue\r\n\r\n")
SWITCHING = writing(
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n"
)
