"""Backlogs: what else is due for a host that takes nothing now, put off many at a time."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from asgiref.sync import sync_to_async
from django.db import Error

from delayed_queue.exceptions import ResourceUnavailable
from delayed_queue.http.callbacks.breaker import HostState
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import Host
from delayed_queue.http.store.callbacks import Beginning, BiteRow
from delayed_queue.messages import MILLISECOND

logger = logging.getLogger("delayed_queue")

# After so many messages of a topic that were leased for a host in vain, others are looked for.
ENOUGH: Final = 16
# How many messages a statement looks at; it is a transaction of its own, of some 10 ms.
BITE: Final = 1000
# How many times as long as a bite took there is none, a second at most: that time is for others.
REST: Final = 4
MOST_REST: Final = 1.0
# How long a pass that has come to the end waits for more to come back, in seconds.
LINGER: Final = 0.5
# Who is told that another is at it tries again: so soon, in seconds, and so often.
MISSED_SECONDS: Final = 0.1
MOST_MISSED: Final = 10
# After a bite of which less than one in so many is for the host there is none: leases cost less.
LEAST_SHARE: Final = 20
# How many come back in the first half of the time over which they are spread.
HALF: Final = 20_000
# A host may be written in so many ways (letter case, a port that could be left out).
MOST_PREFIXES: Final = 16
MOST_BACKLOGS: Final = 1000
# How long claims pass over the messages of a host, unless they are told again: a pass may end
# without a word.
PASSING_SECONDS: Final = 5.0
_BEGINNING: Final = re.compile("[^/]*//[^/?]*")

# Of a database alias and a kind the beginnings of urls, each with the time until when they are
# passed over. Read by workers in another thread, so never changed: what is there is replaced.
_passed_over: dict[tuple[str, str], dict[str, float]] = {}


def passed_over(using: str, kind: str) -> tuple[str, ...]:
    """Return how the urls begin whose messages are being put off, so that none is leased."""
    passed = _passed_over.get((using, kind))
    if not passed:
        return ()
    now = time.monotonic()
    return tuple(prefix for prefix, until in passed.items() if now < until)


@dataclass(slots=True, eq=False)
class Backlog:
    """What was met of a host's messages in one shard of a topic, before a pass and during it."""

    host: HostState
    kind: str
    met: int = 0
    earliest: int = 2**63 - 1
    prefixes: set[str] = field(default_factory=set)
    work: asyncio.Task[None] | None = None


class Backlogs:
    """The backlogs of one database alias and one event loop.

    A pass begins at the earliest message that was met, and goes on in bites until nothing is due,
    as long as the host takes nothing; claims pass over its messages meanwhile. So it costs nothing
    while hosts answer, and for one that does not about as much as the messages put off. A process
    that dies leaves the rest as it was.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._backlogs: dict[tuple[str, str], Backlog] = {}
        self._is_closed = False

    def meet(self, host: HostState, kind: str, url: str, due_at_ms: int) -> None:
        """Count a message that was put off; with enough of them put off what is due behind them."""
        if host.delay_of_others() is None or self._is_closed:
            return
        backlog = self._backlog(host, kind)
        if len(backlog.prefixes) < MOST_PREFIXES:
            backlog.prefixes.add(prefix_in(url))
        if backlog.work is None:
            backlog.met += 1
            backlog.earliest = min(backlog.earliest, due_at_ms)
            if backlog.met >= ENOUGH:
                self._pass_over(backlog)
                backlog.work = asyncio.get_running_loop().create_task(self._pass(backlog))

    def _backlog(self, host: HostState, kind: str) -> Backlog:
        key = (host.name, kind)
        backlog = self._backlogs.get(key)
        if backlog is None:
            if len(self._backlogs) >= MOST_BACKLOGS:
                self._backlogs = {
                    key: each for key, each in self._backlogs.items() if each.work is not None
                }
            backlog = self._backlogs[key] = Backlog(host, kind)
        return backlog

    def _pass_over(self, backlog: Backlog, seconds: float = PASSING_SECONDS) -> None:
        """Have claims pass over the messages of a backlog for so long; of none, no more."""
        key, until = (self._using, backlog.kind), time.monotonic() + seconds
        passed = {**_passed_over.get(key, {}), **dict.fromkeys(backlog.prefixes, until)}
        if seconds:
            _passed_over[key] = passed
        elif rest := {each: passed[each] for each in passed.keys() - backlog.prefixes}:
            _passed_over[key] = rest
        else:
            _passed_over.pop(key, None)

    async def close(self) -> None:
        """Let the bites under way end, at the end of the event loop, and take no more."""
        self._is_closed = True
        works = [each.work for each in self._backlogs.values() if each.work is not None]
        if works:
            await asyncio.wait(works)

    async def _pass(self, backlog: Backlog) -> None:
        try:
            count = await self._put_off(backlog)
        except (Error, ResourceUnavailable) as error:
            logger.warning("event=backlog_not_put_off error=%s", type(error).__name__)
        else:
            logger.info(
                "event=backlog_put_off host=%s kind=%s count=%s",
                backlog.host.name, backlog.kind, count,
            )  # fmt: skip
        finally:
            self._pass_over(backlog, 0)
            del self._backlogs[backlog.host.name, backlog.kind]

    async def _put_off(self, backlog: Backlog) -> int:
        count, missed, after = 0, 0, Beginning(backlog.earliest)
        while (delay := backlog.host.delay_of_others()) is not None and not self._is_closed:
            began = time.monotonic()
            bite = await self._bite(backlog, after, count, delay)
            if bite is None:
                # Or it is open no more, which is known soon.
                missed += 1
                if missed > MOST_MISSED:
                    break
                await asyncio.sleep(MISSED_SECONDS)
                continue
            count, missed = count + bite.put_off, 0
            rest = min(REST * (time.monotonic() - began), MOST_REST)
            if bite.due_at is None or bite.id is None:
                # From the start again, as long as there is something.
                after, rest, least = Beginning(backlog.earliest), max(rest, LINGER), 1
            else:
                after, least = Beginning(bite.due_at, bite.id), BITE // LEAST_SHARE
            if bite.put_off < least:
                break
            self._pass_over(backlog)
            await asyncio.sleep(rest)
        return count

    async def _bite(
        self, backlog: Backlog, after: Beginning, ahead: int, delay: timedelta
    ) -> BiteRow | None:
        return await sync_to_async(Host.objects.put_off_backlog)(
            backlog.host.name, backlog.kind, sorted(backlog.prefixes), after,
            limit=BITE, ahead=ahead, spread=_spread(), half=HALF,
            delay=delay // MILLISECOND or None, using=self._using,
        )  # fmt: skip


def _spread() -> int:
    """Return over how many milliseconds a backlog comes back: as long as a pause."""
    return max(callback_settings().BREAKER_PAUSE, timedelta(seconds=1)) // MILLISECOND


def prefix_in(url: str) -> str:
    """Return how a url, that the guard accepts, begins: up to the sign behind its host."""
    match = _BEGINNING.match(url)
    end = 0 if match is None else match.end()
    return url[: end + 1] if end < len(url) else f"{url}/"
