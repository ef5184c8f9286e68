"""A TCP forwarder before a broker, which can cut its connections."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Forwarder:
    """Forwards to a port of 127.0.0.1; ``cut`` breaks all connections, ``refuse`` new ones too.

    ``stall`` leaves existing connections half open: it discards their bytes.
    """

    def __init__(self, port: int) -> None:
        self._upstream = port
        self._sockets: list[socket.socket] = []
        self._stalled: set[socket.socket] = set()
        self._lock = threading.Lock()
        self.accepted = 0
        self.is_refusing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._listen)]
        self._threads[0].start()

    def cut(self) -> None:
        with self._lock:
            for each in self._sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        with self._lock:
            self._stalled.update(self._sockets)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if source not in self._stalled:
                    target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join(timeout=10)
        for each in [*self._sockets, self._listener]:
            each.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self.is_refusing:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._upstream))
            with self._lock:
                self._sockets += [client, server]
            for pair in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=pair)
                self._threads.append(thread)
                thread.start()
