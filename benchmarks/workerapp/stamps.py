"""The file in which worker processes note what they did, a line each, and its reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Start:
    """A handler began: under which key, and when that was offered; in seconds since the epoch."""

    key: str
    offered_at: float
    started_at: float

    @property
    def delay_ms(self) -> float:
        return (self.started_at - self.offered_at) * 1000


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at the queue came back: when, after how long, from the start of the queue or not."""

    ended_at: float
    seconds: float
    is_full: bool
    found: int


class Pen:
    """Appends lines; one write each, so those of several processes do not mix."""

    def __init__(self, file: str) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    def start(self, key: str, offered_at: float, started_at: float) -> None:
        self._write(f"s {key} {offered_at} {started_at}")

    def looked(self, ended_at: float, seconds: float, is_full: bool, found: int) -> None:
        self._write(f"l {ended_at} {seconds} {int(is_full)} {found}")

    def _write(self, line: str) -> None:
        os.write(self._fd, f"{line}\n".encode())


@dataclass(slots=True)
class Reader:
    """Reads what was written since it was last asked."""

    file: Path
    _position: int = 0
    _rest: bytes = field(default=b"")

    def read(self) -> tuple[list[Start], list[Looked]]:
        starts: list[Start] = []
        looks: list[Looked] = []
        for line in self._lines():
            mark, *words = line.split(" ")
            if mark == "s":
                starts.append(Start(words[0], float(words[1]), float(words[2])))
            else:
                looks.append(
                    Looked(float(words[0]), float(words[1]), words[2] == "1", int(words[3]))
                )
        return starts, looks

    def _lines(self) -> list[str]:
        if not self.file.exists():
            return []
        with self.file.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode() for line in lines]
