"""Having what was deferred come now: when an operator enables an endpoint or closes a host."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final

from django.db import DEFAULT_DB_ALIAS

from delayed_queue.db.resilience import repeat
from delayed_queue.exceptions import UrlRefused
from delayed_queue.http.callbacks.breaker import LONGEST_PAUSE
from delayed_queue.http.callbacks.endpoints import DISABLED_WAIT, Place, matching, place_of
from delayed_queue.http.jobs.catalogue import kinds_of
from delayed_queue.http.jobs.consuming import wake
from delayed_queue.http.jobs.kinds import Way
from delayed_queue.http.models import Endpoint, Host, Topic
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message
from delayed_queue.queue.store.claim import NO_FLOOR

# Later than any worker goes by what it read of an endpoint (2 s) or a host (1 s) before.
WAIT: Final = timedelta(seconds=3)
# So many are looked at by a statement, and so many of those that are recalled are due in a second.
BATCH: Final = 500
SECONDS: Final = 5.0
_PAGE: Final = 1000
# A message that meets an open host is deferred for up to twice what is left, and a second.
_LONGEST: Final = 2 * LONGEST_PAUSE + timedelta(seconds=1)

Matches = Callable[[str], bool]


def recall_endpoint(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> int:
    """Have the jobs come that were deferred while the endpoint was disabled; return how many.

    They are due from three seconds on, when all workers know of the change, 500 in a second. To be
    called when that has committed; each batch is a transaction of its own. Stops after five
    seconds: what is left, and jobs that have failed before, come at their time.
    """
    rows = repeat(using, partial(Endpoint.objects.of_origin, endpoint.origin, using=using))

    def is_of(place: Place) -> bool:
        found = matching(place, rows) if place.origin == endpoint.origin else None
        return found is not None and found.id == endpoint.pk

    return _recall(partial(_leads, is_of), timedelta(seconds=DISABLED_WAIT[1]), using)


def recall_host(host: Host, *, using: str = DEFAULT_DB_ALIAS) -> int:
    """Recall the jobs that were deferred while the host was open, as ``recall_endpoint`` does."""
    return _recall(partial(_leads, lambda place: place.host == host.name), _LONGEST, using)


def _leads(is_there: Callable[[Place], bool], url: str) -> bool:
    try:
        return is_there(place_of(url))
    except UrlRefused:
        return False


def _recall(matches: Matches, horizon: timedelta, using: str) -> int:
    ends_at = time.monotonic() + SECONDS
    recalled = 0
    for kind in _kinds(horizon // MILLISECOND, using):
        before = recalled
        for ids in _deferred(kind, matches, horizon // MILLISECOND, using):
            recalled += _bring(ids, recalled, using) if ids else 0
            if time.monotonic() > ends_at:
                break
        if recalled > before:
            wake([kind], using=using)
        if time.monotonic() > ends_at:
            break
    return recalled


def _bring(ids: list[int], before: int, using: str) -> int:
    """Recall a batch behind so many others."""
    # A second for each batch: as many as it holds, at a random instant of it.
    wait = WAIT // MILLISECOND + before * 1000 // BATCH
    spread = max(len(ids) * 1000 // BATCH, 1)
    recall = partial(Topic.objects.recall, ids, wait=wait, spread=spread, using=using)
    return len(repeat(using, recall))


def _deferred(kind: str, matches: Matches, horizon: int, using: str) -> Iterator[list[int]]:
    """Yield the ids of those deferred that are meant, few or none of each batch of the kind."""
    after, after_id = NO_FLOOR, 0
    while True:
        look = partial(
            Topic.objects.deferred, kind, horizon, after=after, after_id=after_id, limit=BATCH
        )
        rows = repeat(using, partial(look, using=using))
        yield [row.id for row in rows if row.url is not None and matches(row.url)]
        if len(rows) < BATCH:
            return
        after, after_id = rows[-1].due_at, rows[-1].id


def _kinds(horizon: int, using: str) -> Iterator[str]:
    """Yield the kinds of callbacks that have something within the horizon, in any order."""
    after = ""
    while topics := repeat(using, partial(Topic.objects.after, after, _PAGE, using=using)):
        kinds = [kind for topic in topics for kind in kinds_of(topic, Way.CALLBACK)]
        floors = [NO_FLOOR] * len(kinds)
        ask = partial(Message.objects.next_due_of_kinds, kinds, floors, horizon, using=using)
        found = list(repeat(using, ask))
        # Where the time runs out, another kind is first the next time.
        random.shuffle(found)
        yield from found
        after = topics[-1].name
