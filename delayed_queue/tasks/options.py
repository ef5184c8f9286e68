"""The ``OPTIONS`` of a backend in ``TASKS``, checked, and the ids that say when results end."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from hashlib import md5
from itertools import count
from typing import Any, Final
from uuid import UUID

from delayed_queue.db.days import DAY_MS
from delayed_queue.exceptions import InvalidConfiguration, did_you_mean
from delayed_queue.retries import Groups, RetryPolicy, parse_duration

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_LONGEST: Final = timedelta(days=3650)
_MAX_TIME: Final = 2**48 - 1


@dataclass(frozen=True, slots=True)
class Options:
    """``results``: how long results are kept, in whole days; None writes none.

    ``retry``, ``timeout``: of tasks that say nothing else. ``database``: the alias of the queue.
    ``groups``: by queue, the limits of groups of tasks.
    """

    results: timedelta | None = timedelta(days=7)
    retry: RetryPolicy = RetryPolicy.never()  # noqa: RUF009 - it is frozen
    timeout: timedelta | None = None
    database: str = "default"
    groups: Mapping[str, Groups] = field(default_factory=dict)

    @classmethod
    def of(cls, configured: Any) -> Options:
        """Return the options of a dict with upper-case keys; raises InvalidConfiguration."""
        if not isinstance(configured, Mapping):
            raise InvalidConfiguration(f"OPTIONS must be a dict, not {configured!r}.")
        known = {each.name.upper() for each in fields(cls)}
        for key in configured:
            if key not in known:
                hint = did_you_mean(key, known) or f" Known: {', '.join(sorted(known))}."
                raise InvalidConfiguration(f"OPTIONS has an unknown key {key!r}.{hint}")
        return cls(**{key.lower(): _RULES[key](key, value) for key, value in configured.items()})


def _results(key: str, value: Any) -> timedelta | None:
    found = None if value is None else _duration(key, value)
    if found is not None and not timedelta(days=1) <= found <= _LONGEST:
        raise InvalidConfiguration(
            f"{key} is {value!r}: results are kept for 1 to {_LONGEST.days} days, or None for none."
        )
    return found


def _duration(key: str, value: Any) -> timedelta:
    found = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(found, timedelta) or found <= timedelta(0):
        raise InvalidConfiguration(f"{key} is {value!r}: write a duration, as in '7d'.")
    return found


def _timeout(key: str, value: Any) -> timedelta | None:
    return None if value is None else _duration(key, value)


def _retry(key: str, value: Any) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise InvalidConfiguration(f"{key} is {value!r}: it must be a RetryPolicy.")
    return value


def _database(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConfiguration(f"{key} is {value!r}: it must be an alias of DATABASES.")
    return value


def _groups(key: str, value: Any) -> Mapping[str, Groups]:
    if not isinstance(value, Mapping) or not all(isinstance(x, Groups) for x in value.values()):
        raise InvalidConfiguration(f"{key} is {value!r}: it must map names of queues to Groups.")
    return value


_RULES: Final[dict[str, Callable[[str, Any], Any]]] = {
    "RESULTS": _results,
    "RETRY": _retry,
    "TIMEOUT": _timeout,
    "DATABASE": _database,
    "GROUPS": _groups,
}


def id_at(milliseconds: int, rest: bytes | None = None) -> str:
    """Return an id that carries the instant, as UUIDs of version 7 do.

    Results are kept by the day that is in their id: the day on which their task was to run.
    ``rest`` makes it the same each time, 16 bytes; without, it is random.
    """
    return next(ids_at(milliseconds, rest))


def ids_at(milliseconds: int, rest: bytes | None = None) -> Iterator[str]:
    """Yield ids of one instant, each greater than the one before.

    So tasks that are enqueued together are neighbours in every index: at random places they cost
    each claim half as much again, and each result.
    """
    bits = int.from_bytes(os.urandom(16) if rest is None else rest, "big")
    time = min(max(milliseconds, 0), _MAX_TIME)
    text = f"{time << 16 | 7 << 12 | bits >> 64 & 0xFFF:016x}"
    head = f"{text[:8]}-{text[8:12]}-{text[12:]}"
    for low in count(bits & (2**61 - 1) | 0b10 << 62):
        text = f"{low:016x}"
        yield f"{head}-{text[:4]}-{text[4:]}"


def time_of(task_id: str) -> int:
    """Return the milliseconds since the epoch that an id carries."""
    return int(task_id[:8] + task_id[9:13], 16)


def id_of_key(kind: str, key: str, milliseconds: int) -> str:
    """Return the id of a task whose message is not keyed by it: a tick of a schedule."""
    digest = md5(f"{kind}|{key}|{milliseconds}".encode(), usedforsecurity=False).digest()
    return id_at(milliseconds, digest)


def first_id(day: int) -> UUID:
    """Return the least id of a day, counted from 1970-01-01 in UTC."""
    return UUID(int=min(day * DAY_MS, _MAX_TIME) << 80)


def is_id(text: Any) -> bool:
    """Return whether results are found by such an id."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def split_kind(kind: str) -> tuple[str, int]:
    """Return queue and priority of a kind of tasks."""
    name, _, _ = kind.rpartition("|")
    queue, mark, priority = name.rpartition("!")
    try:
        return (queue, int(priority)) if mark else (name, 0)
    except ValueError:
        return name, 0


def kind_of_priority(queue: str, priority: int) -> str:
    """Return the kind of a queue's tasks of a priority: ``mail|json``, ``mail!7|json``."""
    return f"{queue}|json" if priority == 0 else f"{queue}!{priority}|json"
