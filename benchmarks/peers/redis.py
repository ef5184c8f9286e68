"""The Redis of Celery, as far as it is needed to see whether it is there and what is left."""

from __future__ import annotations

import socket
from typing import Final

import psutil

HOST: Final = "127.0.0.1"
PORT: Final = 6379
DATABASE: Final = 15
URL: Final = f"redis://{HOST}:{PORT}/{DATABASE}"


def why_not() -> str | None:
    """Return why there can be no benchmark with Redis, or None; it must not empty what is used."""
    try:
        used = ask("DBSIZE")
    except OSError:
        return f"no Redis at {HOST}:{PORT}"
    return f"database {DATABASE} of the Redis at {HOST}:{PORT} is in use" if used else None


def ask(command: str) -> int:
    """Return the integer that Redis answers to the command."""
    return int(_talk(command).lstrip(":"))


def empty() -> None:
    _talk("FLUSHDB")


def unfinished() -> bool:
    """Tell whether jobs wait or are held by a worker that has not acknowledged them."""
    return ask("LLEN celery") + ask("HLEN unacked") > 0


def waiting() -> int:
    return ask("LLEN celery") + ask("HLEN unacked")


def cpu_seconds() -> float | None:
    """Return the CPU time of a Redis on this machine, or None."""
    for process in psutil.process_iter(["name"]):
        if str(process.info["name"]).startswith("redis-server"):
            times = process.cpu_times()
            return float(times.user + times.system)
    return None


def _talk(command: str) -> str:
    with socket.create_connection((HOST, PORT), timeout=5) as connection:
        connection.sendall(f"SELECT {DATABASE}\r\n{command}\r\n".encode())
        lines = connection.makefile("r", encoding="utf-8")
        lines.readline()
        return lines.readline().strip()
