"""A receiver with exact arrival times, independent of its own reads."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections import defaultdict
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

# Linux timestamps packets for sockets that request it; accepted sockets inherit that.
SO_TIMESTAMPNS: Final = 35
# TCP_INFO state of a connection that the client has not closed.
ESTABLISHED: Final = 1
# The worst resolution of the system's millisecond count.
TICK: Final = 0.010
ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Witness:
    """Answers every request with 200; ``arrived`` has the times of first bytes, by path."""

    def __init__(self) -> None:
        self.arrived: defaultdict[str, list[float]] = defaultdict(list)
        self._server = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self._server.setblocking(False)
        self._server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.port = self._server.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._begun: dict[socket.socket, tuple[float, bytes]] = {}
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="witness", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopped.set()
        self._thread.join(10)
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _serve(self) -> None:
        while not self._is_stopped.is_set():
            for key, _ in self._selector.select(0.05):
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self._server:
                    self._accept()
                else:
                    with suppress(BlockingIOError):
                        self._read(key.fileobj)

    def _accept(self) -> None:
        with suppress(BlockingIOError):
            while True:
                opened, _ = self._server.accept()
                opened.setblocking(False)
                self._selector.register(opened, selectors.EVENT_READ)

    def _read(self, opened: socket.socket) -> None:
        try:
            data, ancillary, *_ = opened.recvmsg(65_536, 256)
        except ConnectionError:
            data, ancillary = b"", []
        if not data:
            self._selector.unregister(opened)
            self._begun.pop(opened, None)
            opened.close()
            return
        at, before = self._begun.pop(opened, (_arrival(opened, ancillary), b""))
        request = before + data
        head, _, body = request.partition(b"\r\n\r\n")
        if len(body) < _length(head):
            self._begun[opened] = (at, request)
            return
        self.arrived[head.split(b" ", 2)[1].decode()].append(at)
        opened.send(ANSWER)


def _arrival(opened: socket.socket, ancillary: list[tuple[int, int, bytes]]) -> float:
    """Return the arrival time of the bytes just read.

    The kernel merges the end of a connection with unread bytes before it, and the time of the end
    replaces theirs. TCP_INFO then still has the time of the last data.
    """
    info = opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 56)
    state, milliseconds = struct.unpack_from("=B51xI", info)
    if state != ESTABLISHED:
        return float(time.time() - milliseconds / 1000 - TICK)
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            return float(seconds + nanoseconds / 1e9)
    return time.time()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 1  # its head is not complete
