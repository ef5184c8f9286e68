"""Third parties that send scripted replies, as slowly as the script requires."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.notifications.fakes import Server


class Scripted(Server):
    """A server whose subclass scripts one connection."""

    async def _start(self) -> None:
        self._talks: set[asyncio.Task[None] | None] = set()
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        talks = [each for each in self._talks if each is not None]
        for each in talks:
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._talks.add(asyncio.current_task())
        try:
            await self.converse(reader, writer)
        except ConnectionError:
            pass  # the client has disconnected
        finally:
            writer.close()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def say(self, writer: asyncio.StreamWriter, *parts: bytes) -> None:
        """Send each part in its own packet."""
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(self.latency)


class ScriptedHttp(Scripted):
    """Answers a POST with these parts, and then disconnects or hangs."""

    def __init__(self, parts: Sequence[bytes], *, hangs: bool = False) -> None:
        super().__init__(latency=0.02)
        self._parts = parts
        self._hangs = hangs

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/messages"

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        self.total += 1
        await self.say(writer, *self._parts)
        if self._hangs:
            await self.hang()


class ScriptedSmtp(Scripted):
    """Sends this greeting, and answers no command."""

    def __init__(self, greeting: bytes) -> None:
        super().__init__()
        self._greeting = greeting

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.say(writer, self._greeting + b"\r\n")
        await reader.read()
