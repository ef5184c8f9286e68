"""Rate limits that hold over all processes: one bucket per name, in the database."""

from __future__ import annotations

import math
import threading
import time
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.models import Rate
from delayed_queue.rates import Credit

MAX_RATE: Final = 100_000.0
MAX_BURST: Final = 1_000_000
MAX_NAME: Final = 200

# A process takes the permits of this many seconds at once, if the burst has them.
CHUNK_SECONDS: Final = 0.1
# Permits taken ahead are lost when they are older, in seconds.
KEEP_SECONDS: Final = 1.0
# A process keeps the permits of at most N buckets; the least recently used is forgotten.
MAX_BUCKETS: Final = 10_000

_ZERO: Final = timedelta(0)


class SharedRate:
    """At most ``per_second`` permits a second under this name, and ``burst`` at once after a rest.

    The limit holds for all processes together, by the database's clock: within any time t at most
    ``per_second * t + burst`` permits are taken. At rates above ten a second a process takes
    permits ahead, so that not each of them costs a write, and uses them within a second or loses
    them. So within any time t at most ``per_second * (t + 1 s) + burst`` are *used*; counted from
    the first permit on, the second is not added.
    """

    __slots__ = ("_bucket", "burst", "name", "per_second", "using")

    def __init__(
        self, name: str, per_second: float, burst: int, using: str = DEFAULT_DB_ALIAS
    ) -> None:
        _check(name, per_second, burst)
        self.name = name
        self.per_second = per_second
        self.burst = burst
        self.using = using
        self._bucket = _bucket(name, float(per_second), burst, using)

    def __repr__(self) -> str:
        return f"SharedRate({self.name!r}, {self.per_second}, {self.burst})"

    def take(self, n: int = 1) -> timedelta:
        """Take ``n`` permits and return zero, or return the time until the next try.

        In a transaction the bucket stays locked until its end, no permit is taken ahead, and a
        rollback returns the permits; so take them before the transaction. Raises
        ResourceUnavailable while the database is away.
        """
        found = self.at_hand(n)
        return self._bucket.fetch(n) if found is None else found

    async def atake(self, n: int = 1) -> timedelta:
        """Like ``take()``; uses a thread only if the database is needed."""
        found = self.at_hand(n)
        return await sync_to_async(self._bucket.fetch)(n) if found is None else found

    def left(self) -> timedelta:
        """Return how long this process expects no free permit; takes none."""
        return self._bucket.left()

    def at_hand(self, n: int = 1) -> timedelta | None:
        """Like ``take()`` without the database; None where that is needed."""
        if type(n) is not int or not 1 <= n <= self.burst:
            raise InvalidConfiguration(f"n must be from 1 to the burst of {self.burst}, not {n!r}.")
        return self._bucket.at_hand(n)


class _Bucket:
    """The permits that one process has taken ahead under a name, and when it may ask for more."""

    def __init__(self, name: str, per_second: float, burst: int, using: str) -> None:
        self._name = name
        self._using = using
        self._interval = 1e6 / per_second
        # Rounded up: a burst of seven must not be six.
        self._burst = math.ceil(burst * self._interval)
        self._chunk = max(1, min(burst, int(per_second * CHUNK_SECONDS)))
        self._credit = Credit()
        self._ask_at = 0.0
        # Held briefly, so that an event loop may take it. `_asking` is held during statements.
        self._lock = threading.Lock()
        self._asking = threading.Lock()

    def at_hand(self, n: int) -> timedelta | None:
        """Use permits, or return the time without any; None if the database is needed."""
        with self._lock:
            now = time.monotonic()
            self._credit.expire(now)
            if self._credit.count >= n:
                return self._use(n)
            return timedelta(seconds=self._ask_at - now) if now < self._ask_at else None

    def left(self) -> timedelta:
        with self._lock:
            now = time.monotonic()
            self._credit.expire(now)
            wait = 0.0 if self._credit.count else max(self._ask_at - now, 0.0)
            return timedelta(seconds=wait)

    def fetch(self, n: int) -> timedelta:
        if connections[self._using].in_atomic_block:
            # Other threads must not use permits that a rollback would return.
            return self._ask(n, n)[1]
        with self._asking:
            # Another thread may have fetched enough meanwhile.
            found = self.at_hand(n)
            return self._fetch(n) if found is None else found

    def _fetch(self, n: int) -> timedelta:
        asked_at = time.monotonic()
        with self._lock:
            least = max(n - self._credit.count, 1)
        most = max(least, self._chunk)
        granted, wait = repeat(self._using, lambda: self._ask(least, most))
        with self._lock:
            if granted:
                self._credit.add(asked_at + KEEP_SECONDS, granted)
            if granted < most and most > n:
                # Other processes take permits too. Without a wait, each permit would cost a write.
                self._ask_at = max(asked_at + self._chunk * self._interval / 1e6, self._ask_at)
            if not granted:
                self._ask_at = max(time.monotonic() + wait.total_seconds(), self._ask_at)
                return timedelta(seconds=max(self._ask_at - time.monotonic(), 1e-6))
            if self._credit.count < n:  # some were used or expired meanwhile
                return timedelta(microseconds=math.ceil(self._interval))
            return self._use(n)

    def _ask(self, least: int, most: int) -> tuple[int, timedelta]:
        granted, wait = Rate.objects.take(
            self._name, least, most, interval=self._interval, burst=self._burst, using=self._using
        )
        return granted, timedelta(microseconds=wait)

    def _use(self, n: int) -> timedelta:
        self._credit.use(n)
        return _ZERO


@lru_cache(maxsize=MAX_BUCKETS)
def _bucket(name: str, per_second: float, burst: int, using: str) -> _Bucket:
    return _Bucket(name, per_second, burst, using)


def forget() -> None:
    """Forget the permits of this process; for tests, which delete buckets."""
    _bucket.cache_clear()


def _check(name: Any, per_second: Any, burst: Any) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or "\0" in name:
        raise InvalidConfiguration(f"A rate's name is text of 1 to {MAX_NAME} characters.")
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if not is_number or not 1 / 86_400 <= per_second <= MAX_RATE:
        raise InvalidConfiguration(
            f"per_second must be from one a day to {MAX_RATE:,.0f}, not {per_second!r}."
        )
    if type(burst) is not int or not 1 <= burst <= MAX_BURST:
        raise InvalidConfiguration(f"burst must be from 1 to {MAX_BURST:,}, not {burst!r}.")
