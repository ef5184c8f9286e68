"""Limits for waits on connections whose other side may be gone (W17)."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from django.db import connections
from django.db.backends.signals import connection_created

from delayed_queue.db.own import is_in_pool, is_own
from delayed_queue.db.session import cancel

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")

# libpq's limits, in its units. Bytes that are not acknowledged end a connection after 25 s,
# silence ends it after 60 s, and connecting takes at most 10 s.
SILENCE: Final = {
    "tcp_user_timeout": 25_000,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "connect_timeout": 10,
}
# Maximum wait for a reply, in seconds. TCP notices nothing where a pooler or proxy acknowledges
# bytes that it drops. With a poll interval of 8 s, a claim follows within 30 s.
ANSWER_SECONDS: Final = 15.0
# Maximum of that wait after several late replies, in seconds. An iteration of the claim loop must
# end within the setting WATCHDOG, 2 minutes by default.
_MOST_SECONDS: Final = 90.0

_limited: Final[WeakSet[BaseDatabaseWrapper]] = WeakSet()


def limit_silence(using: str) -> None:
    """Set libpq's limits for new connections of this process; the project's options win."""
    options = connections[using].settings_dict["OPTIONS"]
    for name, value in SILENCE.items():
        options.setdefault(name, value)


def limit_waits(using: str) -> None:
    """Limit the waits on new connections of a thread that runs only statements of the package.

    Not with Django's pool, which lends them to the project afterwards.
    """
    _limited.add(connections[using])


class _WaitLimit:
    """The maximum wait for a reply on the connections of one Django wrapper.

    It doubles after a late reply, so that a slow server can finish a statement.
    """

    def __init__(self) -> None:
        self._seconds = ANSWER_SECONDS

    def wait(
        self, raw: psycopg.Connection[Any], steps: Generator[Any, Any, T], *args: Any, **kwargs: Any
    ) -> T:
        """Wait as psycopg does; close the connection and raise if no reply comes in time."""
        started_at = time.monotonic()
        found: T = type(raw).wait(raw, self._limit(raw, steps), *args, **kwargs)
        taken = time.monotonic() - started_at
        self._seconds = min(max(ANSWER_SECONDS, 2 * taken), _MOST_SECONDS)
        return found

    def _limit(
        self, raw: psycopg.Connection[Any], steps: Generator[Any, Any, T]
    ) -> Generator[Any, Any, T]:
        deadline = time.monotonic() + self._seconds
        try:
            wanted = next(steps)
            while True:
                # Nothing is ready at the end of each of psycopg's intervals of 0.1 s.
                ready = yield wanted
                if not ready and time.monotonic() >= deadline:
                    self._give_up(raw)
                wanted = steps.send(ready)
        except StopIteration as end:
            found: T = end.value
            return found

    def _give_up(self, raw: psycopg.Connection[Any]) -> None:
        waited = self._seconds
        self._seconds = min(2 * waited, _MOST_SECONDS)
        cancel(raw)
        raw.close()
        raise psycopg.OperationalError(f"the database has not answered within {waited:.0f} s")


_limits: Final[WeakKeyDictionary[BaseDatabaseWrapper, _WaitLimit]] = WeakKeyDictionary()


def _limit_waits(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    if (is_own(connection) or connection in _limited) and not is_in_pool(connection):
        limit = _limits.setdefault(connection, _WaitLimit())
        raw = connection.connection
        raw.wait = partial(limit.wait, raw)


# After the receiver of delayed_queue.db.session: a quick SET would end the longer wait.
connection_created.connect(_limit_waits, dispatch_uid="delayed_queue.silence")
