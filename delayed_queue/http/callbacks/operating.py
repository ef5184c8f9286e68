"""Operations on endpoints and hosts: register, rotate, disable, enable, and recall jobs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Final

from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import F

from delayed_queue.db.clock import read_clock
from delayed_queue.db.resilience import never, repeat
from delayed_queue.exceptions import InvalidConfiguration, UrlRefused
from delayed_queue.http.callbacks.admission import DISABLED_WAIT
from delayed_queue.http.callbacks.breaker import LONGEST_PAUSE
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.callbacks.endpoints import Place, matching, place_of, prefix_of
from delayed_queue.http.callbacks.secrets import seal
from delayed_queue.http.jobs.catalogue import kinds_of, wake
from delayed_queue.http.jobs.kinds import Way
from delayed_queue.http.models import Endpoint, Host, Topic
from delayed_queue.http.rates import SharedRate
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message
from delayed_queue.queue.store.claim import NO_FLOOR

# Recalled jobs are due after this time: workers trust what they read of an endpoint for 2 s.
WAIT: Final = timedelta(seconds=3)
# Jobs that one statement reads, and recalled jobs that are due within each second.
BATCH: Final = 500
# Duration of a recall.
SECONDS: Final = 5.0
_PAGE: Final = 1000
# The breaker defers a message by at most twice what is left of the pause, and a second.
_LONGEST: Final = 2 * LONGEST_PAUSE + timedelta(seconds=1)

Matches = Callable[[str], bool]


BY_OPERATOR = "By an operator."


def register_endpoint(
    url: str,
    *,
    per_second: float | None = None,
    burst: int = 1,
    concurrency: int | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> str:
    """Register the url and all below it; return the secret, which is not shown again.

    Raises UrlRefused for a url that callbacks must not go to, InvalidConfiguration for invalid
    limits and for a prefix that is registered already.
    """
    _check_limits(per_second, burst, concurrency)
    origin, prefix = prefix_of(url)
    secret = new_secret()
    sealed = seal(secret)
    mine = Endpoint.objects.using(using).filter(origin=origin, prefix=prefix, secret=sealed)

    def register() -> bool:
        with transaction.atomic(using=using):
            is_new = Endpoint.objects.add_once(origin, prefix, sealed, using=using)
            mine.update(per_second=per_second, burst=burst, concurrency=concurrency)
        return is_new

    if not repeat(using, register, truth=lambda _: mine.exists() or register()):
        raise InvalidConfiguration(f"{prefix} is already registered. To see a secret, rotate it.")
    return secret


def endpoint_of(url: str, *, using: str = DEFAULT_DB_ALIAS) -> Endpoint:
    """Return the endpoint with exactly this prefix, or raise InvalidConfiguration."""
    origin, prefix = prefix_of(url)
    found = repeat(using, Endpoint.objects.using(using).filter(origin=origin, prefix=prefix).first)
    if found is None:
        raise InvalidConfiguration(f"{prefix} is not registered.")
    return found


def rotate_secret(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> str:
    """Return a new secret, not shown again; callbacks carry the old one's signature for 24 h."""
    secret = new_secret()
    sealed = seal(secret)
    rows = Endpoint.objects.using(using).filter(pk=endpoint.pk)
    # A repetition must not make the new secret the previous one.
    rotate = partial(
        rows.exclude(secret=sealed).update,
        previous_secret=F("secret"), secret=sealed, rotated_at=read_clock(using),
    )  # fmt: skip
    repeat(using, rotate, doubt=never)
    return secret


def disable_endpoint(
    endpoint: Endpoint, reason: str = BY_OPERATOR, *, using: str = DEFAULT_DB_ALIAS
) -> bool:
    """Stop callbacks to it; its jobs wait. Return False if it was disabled already."""
    disable = partial(Endpoint.objects.disable, endpoint.pk, reason, using=using)
    return repeat(using, disable, doubt=never)


def enable_endpoint(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Allow callbacks to it again; return False if it was not disabled.

    Workers see it within seconds. Deferred jobs are due within 15 minutes; for sooner, call
    ``recall_endpoint`` after this has committed.
    """
    disabled = Endpoint.objects.using(using).filter(pk=endpoint.pk, disabled_at__isnull=False)
    enable = partial(disabled.update, disabled_at=None, disabled_reason="")
    return repeat(using, enable, doubt=never) > 0


def _check_limits(per_second: float | None, burst: int, concurrency: int | None) -> None:
    if per_second is not None:
        SharedRate("endpoint", per_second, burst)
    if concurrency is not None and concurrency < 1:
        raise InvalidConfiguration("The concurrency of an endpoint is 1 or more.")


def recall_endpoint(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> int:
    """Make jobs due that were deferred while the endpoint was disabled; return their number.

    They are due from three seconds on, 500 per second. Call it after the change has committed; each
    batch is a transaction of its own. It stops after five seconds: the rest, and jobs that have
    failed before, keep their time.
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
    """Recall a batch, due after the ``before`` jobs of earlier batches."""
    # At a random instant within the batch's second.
    wait = WAIT // MILLISECOND + before * 1000 // BATCH
    spread = max(len(ids) * 1000 // BATCH, 1)
    recall = partial(Topic.objects.recall, ids, wait=wait, spread=spread, using=using)
    return len(repeat(using, recall, doubt=never))


def _deferred(kind: str, matches: Matches, horizon: int, using: str) -> Iterator[list[int]]:
    """Yield, for each batch of deferred messages of the kind, the ids of those that match."""
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
    """Yield the kinds of callbacks with messages due within the horizon, in random order."""
    after = ""
    while topics := repeat(using, partial(Topic.objects.after, after, _PAGE, using=using)):
        kinds = [kind for topic in topics for kind in kinds_of(topic, Way.CALLBACK)]
        floors = [NO_FLOOR] * len(kinds)
        ask = partial(Message.objects.next_due_of_kinds, kinds, floors, horizon, using=using)
        found = list(repeat(using, ask))
        # So that the next recall starts with another kind, if this one runs out of time.
        random.shuffle(found)
        yield from found
        after = topics[-1].name
