"""The one connection of a server process that listens for all pops that wait in it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, LiteralString

import psycopg
from django.db import connections
from psycopg import sql as composed

from delayed_queue.observe.logs import log

RECONNECT_SECONDS: Final = 1.0
_CONNECT_SECONDS: Final = 5
# Of Django's parameters, those that are about its own kind of connection.
_DJANGOS: Final = frozenset({"context", "cursor_factory", "prepare_threshold"})


class PopListener:
    """Hears notifications on an event loop, on a connection of its own; reconnects by itself.

    Who is on a channel is told of every notification, and of every new connection: something
    may have been announced in between. While there is none, nobody is told of anything, and
    waiting falls back to looking from time to time.
    """

    def __init__(self, using: str, heard: Callable[[str | None], None]) -> None:
        self._using = using
        self._heard = heard  # with a channel, or None for all
        self._wanted: Counter[str] = Counter()
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._watched: int | None = None
        self._turn = asyncio.Lock()
        self._reconnecting: asyncio.Task[None] | None = None
        self._is_deaf = False

    async def add(self, channels: Iterable[str]) -> None:
        """Listen on the channels, if the database lets us; returns when it does."""
        async with self._turn:
            new = [each for each in channels if not self._wanted[each]]
            self._wanted.update(channels)
            if self._connection is None:
                await self._connect()
            else:
                await self._say("LISTEN {}", new)

    async def remove(self, channels: Iterable[str]) -> None:
        async with self._turn:
            self._wanted.subtract(channels)
            gone = [each for each in channels if self._wanted[each] <= 0]
            for each in gone:
                del self._wanted[each]
            await self._say("UNLISTEN {}", gone)

    def deafen(self) -> None:
        """Make no connection any more; one that is being made is for ``close``."""
        self._is_deaf = True
        if self._reconnecting is not None:
            self._reconnecting.cancel()

    async def close(self) -> None:
        """End for good. Waits for whoever is adding or removing channels."""
        self.deafen()
        async with self._turn:
            self._wanted.clear()
            await self._lose()

    async def _connect(self) -> None:
        if self._is_deaf:
            return
        params = connections[self._using].get_connection_params()
        own = {name: value for name, value in params.items() if name not in _DJANGOS}
        own = {"connect_timeout": _CONNECT_SECONDS, **own, "application_name": "delayed_queue_pops"}
        try:
            made = await psycopg.AsyncConnection.connect(autocommit=True, **own)
        except psycopg.Error as error:
            self._retry_later(error)
            return
        # A notification may come along with the answer to LISTEN.
        made.add_notify_handler(lambda notification: self._heard(notification.channel))
        self._connection = made
        await self._say("LISTEN {}", list(self._wanted))
        self._heard(None)

    async def _say(self, statement: LiteralString, channels: list[str]) -> None:
        raw = self._connection
        if raw is None:
            return
        self._unwatch()  # psycopg waits on the same descriptor, and would take our reader off it
        try:
            for each in channels:
                await raw.execute(composed.SQL(statement).format(composed.Identifier(each)))
            self._watch(raw)
        except psycopg.Error as error:
            await self._lose()
            self._retry_later(error)

    def _watch(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self._watched = raw.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._read)
        self._read()  # what came behind the last answer is in libpq's memory already

    def _unwatch(self) -> None:
        # By its number: a connection that broke tells no more which it was.
        number, self._watched = self._watched, None
        if number is not None:
            asyncio.get_running_loop().remove_reader(number)

    def _read(self) -> None:
        raw = self._connection
        if raw is None:
            return
        try:
            raw.pgconn.consume_input()
            while (found := raw.pgconn.notifies()) is not None:
                self._heard(found.relname.decode())
        except psycopg.Error as error:
            self._unwatch()
            self._retry_later(error)

    async def _lose(self) -> None:
        self._unwatch()
        raw, self._connection = self._connection, None
        if raw is not None:
            await raw.close()

    def _retry_later(self, error: psycopg.Error) -> None:
        if self._reconnecting is None and not self._is_deaf:
            log(logging.WARNING, "listener_lost", error=type(error).__name__)
            self._reconnecting = asyncio.ensure_future(self._reconnect())

    async def _reconnect(self) -> None:
        while True:
            await asyncio.sleep(RECONNECT_SECONDS)
            async with self._turn:
                await self._lose()
                if self._wanted:
                    await self._connect()
                if self._connection is not None or not self._wanted:
                    self._reconnecting = None
                    return
