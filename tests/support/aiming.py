"""Aims at a statement in the proxy, to hold it at a chosen stage."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Iterator
from enum import Enum
from typing import Final

# Patterns of the queue's statements, under any prepared name.
CLAIM: Final = r"attempts = CASE"
ACKNOWLEDGE: Final = r"DELETE FROM delayed_queue\s"
EFFECT: Final = r"INSERT INTO \"workerapp_effect\""
COMMIT: Final = r"^COMMIT"
LOOK_AT_GROUPS: Final = r"found AS \("
LEASE_GROUPS: Final = r"asked \(name, number, retaken"

_LENGTH: Final = struct.Struct("!I")
_PARSE, _BIND, _QUERY, _SYNC = b"P", b"B", b"Q", b"S"
_COMMAND_COMPLETE, _READY = b"C", b"Z"
_FLUSH: Final = b"H" + _LENGTH.pack(4)


class Stage(Enum):
    """The stage of a statement at which it is held."""

    UNSENT = "before it reaches the server"
    EXECUTED = "executed, not committed"
    COMMITTED = "committed, before its answer arrives"


# Statements of a claim by group that can be cut, and their stages.
GROUP_CUTS: Final = [
    (LOOK_AT_GROUPS, Stage.EXECUTED),
    (LEASE_GROUPS, Stage.UNSENT),
    (LEASE_GROUPS, Stage.EXECUTED),
    (COMMIT, Stage.UNSENT),
    (COMMIT, Stage.COMMITTED),
]


class Aim:
    """The nth execution of a statement that matches, and the stage to hold it at.

    With ``after``, only on a connection that has executed a statement matching that before.
    ``hit`` is set once it is held; ``port`` is then that of its connection. EXECUTED is for
    the extended protocol alone: there the server commits at the Sync, which is held.
    """

    def __init__(self, pattern: str, stage: Stage, *, nth: int = 1, after: str = "") -> None:
        self.stage = stage
        self.port = 0
        self.hit = threading.Event()
        self._pattern = re.compile(pattern)
        self._left = nth
        self.after = re.compile(after) if after else None

    def matches(self, text: str) -> bool:
        """Count the statement; return True if it is the nth."""
        if self._pattern.search(text):
            self._left -= 1
            return self._left == 0
        return False

    def wait(self) -> None:
        assert self.hit.wait(60), f"nothing to hold {self.stage.value}"


class Stream:
    """The bytes of one direction as frames; a client's first has no kind, as in `b""`."""

    def __init__(self, *, starts_up: bool = False) -> None:
        self._unread = b""
        self._kind_length = 0 if starts_up else 1

    def feed(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._unread += data
        while len(self._unread) >= self._kind_length + 4:
            end = self._kind_length + _LENGTH.unpack_from(self._unread, self._kind_length)[0]
            if len(self._unread) < end:
                return
            frame, self._unread = self._unread[:end], self._unread[end:]
            kind, self._kind_length = frame[: self._kind_length], 1
            yield kind, frame


def statement_in(kind: bytes, frame: bytes) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the statement in a client's frame, if any."""
    if kind == _QUERY:
        yield "", frame[5:-1].decode()
    elif kind == _PARSE:
        name, text, _ = frame[5:].split(b"\0", 2)
        yield name.decode(), text.decode()


class Sight:
    """The statements of one connection, and the held one.

    After its first use a prepared statement is sent as a name, so names are recorded.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._prepared: dict[bytes, str] = {}
        self._is_after = False
        self._aim: Aim | None = None
        self._passing = 0
        self._due = 1  # one ReadyForQuery ends the start-up
        self._requests: list[bytes] | None = None
        self._answers: list[bytes] = []

    @property
    def is_aimed_at(self) -> bool:
        return self._aim is not None

    def takes(self, aim: Aim, kind: bytes, frame: bytes) -> bool:
        """True if the aim matches this frame; the frame is then held."""
        text = self._text(kind, frame)
        if text is None or not self._follows(aim, text) or not aim.matches(text):
            return False
        self._aim, self._passing = aim, self._due
        return True

    def request(self, kind: bytes, frame: bytes) -> bytes:
        """Return the bytes for the server in place of the frame."""
        self._learn(kind, frame)
        if self._requests is not None:
            self._requests.append(frame)
            return b""
        if self._aim is not None and self._holds(self._aim, kind):
            self._requests = [frame]
            return _FLUSH if self._aim.stage is Stage.EXECUTED else b""
        self._due += kind in (_SYNC, _QUERY)
        return frame

    def answer(self, kind: bytes, frame: bytes) -> bytes:
        """Return the bytes for the client in place of the frame."""
        if self._aim is None or self._passing > 0:
            self._due -= kind == _READY
            self._passing -= kind == _READY and self._passing > 0
            return frame
        self._answers.append(frame)
        self._judge(self._aim, kind)
        return b""

    def let_go(self) -> tuple[bytes, bytes]:
        requests, answers = self._requests or [], self._answers
        self._aim, self._requests, self._answers = None, None, []
        self._due += sum(each[:1] in (_SYNC, _QUERY) for each in requests)
        self._due -= sum(each[:1] == _READY for each in answers)
        return b"".join(requests), b"".join(answers)

    def _follows(self, aim: Aim, text: str) -> bool:
        """True if the aim's condition was met before this statement."""
        follows = self._is_after or aim.after is None
        self._is_after = self._is_after or (aim.after is not None and bool(aim.after.search(text)))
        return follows

    def _holds(self, aim: Aim, kind: bytes) -> bool:
        if aim.stage is Stage.UNSENT:
            self._strike(aim)
            return True
        return aim.stage is Stage.EXECUTED and kind == _SYNC

    def _judge(self, aim: Aim, kind: bytes) -> None:
        is_executed = aim.stage is Stage.EXECUTED and kind == _COMMAND_COMPLETE
        is_committed = aim.stage is Stage.COMMITTED and kind == _READY
        if (is_executed and self._requests is not None) or is_committed:
            self._strike(aim)

    def _strike(self, aim: Aim) -> None:
        aim.port = self._port
        aim.hit.set()

    def _learn(self, kind: bytes, frame: bytes) -> None:
        if kind == _PARSE:
            name, text, _ = frame[5:].split(b"\0", 2)
            self._prepared[name] = text.decode()

    def _text(self, kind: bytes, frame: bytes) -> str | None:
        """Return the statement that the frame has executed, if any."""
        if kind == _QUERY:
            return frame[5:-1].decode()
        if kind == _BIND:
            _, name, _ = frame[5:].split(b"\0", 2)
            return self._prepared.get(name)
        return None
