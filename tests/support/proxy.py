"""A TCP proxy before PostgreSQL that parses the protocol to fail on command."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Final
from urllib.parse import quote

from django.db import connections

from tests.support.aiming import Aim, Sight, Stage, Stream, statement_in

_COMMAND_COMPLETE: Final = b"C"
_ERROR: Final = b"E"
_READY: Final = b"Z"


class Proxy:
    """Forward unencrypted connections to the server, until a test stalls or cuts them.

    ``accepted`` counts connections. ``answers`` holds the tag of every completed command (as in
    ``DELETE 1``), and ``errors`` the SQLSTATE of every server error. ``rounds`` counts the server's
    ReadyForQuery messages.

    ``statements`` holds each statement of a client: its text, and its prepared name, which is empty
    if the session does not keep it.
    """

    def __init__(self, family: socket.AddressFamily, address: Any) -> None:
        self._upstream = family, address
        self.selector = selectors.DefaultSelector()
        self._orders: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._wakeup, self._waker = socket.socketpair()
        self.selector.register(self._wakeup, selectors.EVENT_READ, self._obey)
        self.pairs: set[_Pair] = set()
        self._listener: socket.socket | None = None
        self._is_hanging_up = False
        self._is_over = False
        self.port = 0
        self.accepted = 0
        self.answers: list[str] = []
        self.errors: list[str] = []
        self.rounds = 0
        self.statements: list[tuple[str, str]] = []
        self.swallowed_tag: str | None = None
        self.aim: Aim | None = None
        self._flow = threading.Event()
        self._flow.set()
        self._listen()
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL of the test database through this proxy."""
        found = connections["default"].settings_dict
        login = f"{found['USER']}:{quote(found['PASSWORD'], safe='')}"
        address = f"127.0.0.1:{self.port}/{found['NAME']}"
        return f"postgresql://{login}@{address}?sslmode=disable&gssencmode=disable"

    def cut(self) -> None:
        """Break all connections."""
        self._order(self._cut)

    def refuse(self) -> None:
        """Break all connections and refuse new ones, as a stopped server does."""
        self._order(self._refuse)

    def hang_up(self) -> None:
        """Break all connections and close new ones at once, as a starting server may."""
        self._is_hanging_up = True
        self._order(self._cut)

    def accept(self) -> None:
        """Work again, on the same port."""
        self._is_hanging_up = False
        self._order(self._listen)

    def swallow_answer(self, tag: str) -> None:
        """Drop the answer to the next command with that tag, and break its connection.

        The server has committed by then, unless a transaction block is open.
        """
        self.swallowed_tag = tag

    def aim_at(self, pattern: str, stage: Stage, *, nth: int = 1, after: str = "") -> Aim:
        """Hold the nth execution of a matching statement at that stage; see Aim."""
        self.aim = Aim(pattern, stage, nth=nth, after=after)
        return self.aim

    def cut_aimed(self) -> None:
        """Break only the connection whose statement is held."""
        self._order(self._cut_aimed)

    def let_go(self) -> None:
        """Forward the bytes that an aim has held, and all bytes behind them."""
        self._order(self._let_go)

    def stall(self) -> None:
        """Accept connections and bytes, and forward nothing, until ``resume()``.

        A server whose processes are stopped does the same.
        """
        self._order(self._flow.clear)

    def resume(self) -> None:
        self._flow.set()

    def drop_bytes(self) -> None:
        """Drop all bytes of the present connections, either way; new ones work.

        A NAT does the same after it has forgotten them. TCP still acknowledges the bytes here.
        """
        self._order(self._drop_bytes)

    def stop(self) -> None:
        """Break all connections, and return once the thread has ended."""
        self.resume()
        self._order(self._end)
        self._thread.join()
        for each in (self._wakeup, self._waker, self.selector):
            each.close()

    # The methods below run in the proxy's thread.

    def _order(self, order: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._orders.put((order, done))
        self._waker.send(b"\0")
        done.result(10)

    def _obey(self) -> None:
        self._wakeup.recv(1)
        order, done = self._orders.get()
        order()
        done.set_result(None)

    def _run(self) -> None:
        while not self._is_over:
            for key, _ in self.selector.select():
                key.data()
            self._flow.wait()

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self.port = self._listener.getsockname()[1]
            self.selector.register(self._listener, selectors.EVENT_READ, self._welcome)

    def _refuse(self) -> None:
        if self._listener is not None:
            self.selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
        self._cut()

    def _end(self) -> None:
        self._refuse()
        self._is_over = True

    def _cut(self) -> None:
        for pair in list(self.pairs):
            pair.close()

    def _drop_bytes(self) -> None:
        for pair in self.pairs:
            pair.drops_bytes = True

    def _cut_aimed(self) -> None:
        for pair in list(self.pairs):
            if pair.is_aimed_at:
                pair.close()

    def _let_go(self) -> None:
        for pair in list(self.pairs):
            pair.let_go()

    def _welcome(self) -> None:
        if self._listener is None:  # closed by an order of the same round
            return
        client, _ = self._listener.accept()
        self.accepted += 1
        server = None if self._is_hanging_up else self._connected()
        if server is None:
            client.close()
            return
        for each in (client, server):
            if each.family != socket.AF_UNIX:  # replies go out frame by frame, and at once
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.pairs.add(_Pair(self, client, server))

    def _connected(self) -> socket.socket | None:
        """Return a connection to the server; None while that is down."""
        family, address = self._upstream
        server = socket.socket(family, socket.SOCK_STREAM)
        try:
            server.connect(address)
        except OSError:
            server.close()
            return None
        return server


class _Pair:
    """One connection, from the client to us and from us to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._requests = Stream(starts_up=True)
        self._answers = Stream()
        self._sight = Sight(client.getpeername()[1])
        self._is_swallowing = False
        self.drops_bytes = False
        proxy.selector.register(client, selectors.EVENT_READ, self._upward)
        proxy.selector.register(server, selectors.EVENT_READ, self._downward)

    def close(self) -> None:
        # Closed by the other half, or by an order of the same round.
        if self in self._proxy.pairs:
            self._proxy.pairs.remove(self)
            for each in (self._client, self._server):
                self._proxy.selector.unregister(each)
                each.close()

    @property
    def is_aimed_at(self) -> bool:
        return self._sight.is_aimed_at

    def let_go(self) -> None:
        """Forward the held bytes in both directions."""
        requests, answers = self._sight.let_go()
        self._send(self._server, requests)
        self._send(self._client, answers)

    def _upward(self) -> None:
        for kind, frame in self._requests.feed(self._received(self._client)):
            self._proxy.statements.extend(statement_in(kind, frame))
            if self._proxy.aim is not None and self._sight.takes(self._proxy.aim, kind, frame):
                self._proxy.aim = None
            self._send(self._server, self._sight.request(kind, frame))

    def _downward(self) -> None:
        for kind, frame in self._answers.feed(self._received(self._server)):
            self._forward(kind, frame)

    def _forward(self, kind: bytes, frame: bytes) -> None:
        self._proxy.rounds += kind == _READY
        if kind == _COMMAND_COMPLETE:
            self._note(frame[5:-1].decode())
        elif kind == _ERROR:
            fields = {each[:1]: each[1:] for each in frame[5:].split(b"\0")}
            self._proxy.errors.append(fields[b"C"].decode())
        if not self._is_swallowing:
            self._send(self._client, self._sight.answer(kind, frame))
        elif kind == _READY:
            self.close()

    def _note(self, tag: str) -> None:
        self._proxy.answers.append(tag)
        awaited = self._proxy.swallowed_tag
        if awaited is not None and tag.startswith(awaited):
            self._proxy.swallowed_tag = None
            self._is_swallowing = True

    def _received(self, source: socket.socket) -> bytes:
        with suppress(OSError):
            if data := source.recv(65536):
                return b"" if self.drops_bytes else data
        self.close()
        return b""

    def _send(self, target: socket.socket, data: bytes) -> None:
        try:
            if data:
                target.sendall(data)
        except OSError:
            self.close()
