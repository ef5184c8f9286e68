"""Ids of tasks: UUIDs of version 7, whose time decides when their results are dropped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from hashlib import md5
from itertools import count
from typing import Any, Final
from uuid import UUID

from delayed_queue.db.days import DAY_MS

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_TIME: Final = 2**48 - 1


def id_at(milliseconds: int, rest: bytes | None = None) -> str:
    """Return an id that contains the time.

    Results are kept by the day in their id, the day on which the task is to run. ``rest`` is the
    16 bytes that make the id unique; by default they are random.
    """
    return next(ids_at(milliseconds, rest))


def ids_at(milliseconds: int, rest: bytes | None = None) -> Iterator[str]:
    """Yield ids of one time, each greater than the one before.

    So tasks that are enqueued together are neighbours in every index. With random ids a claim, and
    the writing of results, takes half as long again.
    """
    bits = int.from_bytes(os.urandom(16) if rest is None else rest, "big")
    time = min(max(milliseconds, 0), _MAX_TIME)
    text = f"{time << 16 | 7 << 12 | bits >> 64 & 0xFFF:016x}"
    head = f"{text[:8]}-{text[8:12]}-{text[12:]}"
    for low in count(bits & (2**61 - 1) | 0b10 << 62):
        text = f"{low:016x}"
        yield f"{head}-{text[:4]}-{text[4:]}"


def time_of(task_id: str) -> int:
    """Return the time in an id, in milliseconds since the epoch."""
    return int(task_id[:8] + task_id[9:13], 16)


def id_of_key(kind: str, key: str, milliseconds: int) -> str:
    """Return the id of a task whose message has another key, such as a tick of a schedule."""
    digest = md5(f"{kind}|{key}|{milliseconds}".encode(), usedforsecurity=False).digest()
    return id_at(milliseconds, digest)


def first_id(day: int) -> UUID:
    """Return the least id of a day, counted from 1970-01-01 in UTC."""
    return UUID(int=min(day * DAY_MS, _MAX_TIME) << 80)


def is_id(text: Any) -> bool:
    """Return whether the text can be the id of a task."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None
