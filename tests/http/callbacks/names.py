"""A DNS server on loopback with scripted answers."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tests.http.callbacks.servers import TIMEOUT

_AAAA = 28


@dataclass
class NameServer:
    """A DNS server on loopback; ``answers[name]`` holds addresses, or one list per query.

    A name without an entry does not exist; a name with None gets no reply.
    """

    answers: Mapping[str, Sequence[str] | Sequence[Sequence[str]] | None] = field(
        default_factory=dict
    )
    queries: list[tuple[str, int]] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="name-server", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An empty datagram stops the thread; closing the socket would not wake it.
        self._socket.sendto(b"", ("127.0.0.1", self.port))
        self._thread.join(TIMEOUT)
        self._socket.close()

    def _serve(self) -> None:
        while query := self._socket.recvfrom(4096):
            data, asker = query
            if not data:
                return
            if (answer := self._answer(data)) is not None:
                self._socket.sendto(answer, asker)

    def _answer(self, data: bytes) -> bytes | None:
        name, end = _read_name(data)
        kind = int.from_bytes(data[end : end + 2], "big")
        turn = sum(each == (name, kind) for each in self.queries)
        self.queries.append((name, kind))
        known = self.answers.get(name, ())
        if known is None:
            return None
        addresses = [each for each in _of_turn(known, turn) if (":" in each) == (kind == _AAAA)]
        code = 0 if name in self.answers else 3
        counts = struct.pack(">HHHH", 1, len(addresses), 0, 0)
        records = b"".join(_record(each, kind) for each in addresses)
        return data[:2] + struct.pack(">H", 0x8180 | code) + counts + data[12 : end + 4] + records


def _of_turn(known: Sequence[str] | Sequence[Sequence[str]], turn: int) -> Sequence[str]:
    if known and not isinstance(known[0], str):
        return known[min(turn, len(known) - 1)]
    return [each for each in known if isinstance(each, str)]


def _read_name(data: bytes) -> tuple[str, int]:
    labels, at = [], 12
    while length := data[at]:
        labels.append(data[at + 1 : at + 1 + length].decode().lower())
        at += 1 + length
    return ".".join(labels), at + 1


def _record(address: str, kind: int) -> bytes:
    family = socket.AF_INET6 if kind == _AAAA else socket.AF_INET
    packed = socket.inet_pton(family, address)
    return b"\xc0\x0c" + struct.pack(">HHIH", kind, 1, 0, len(packed)) + packed
