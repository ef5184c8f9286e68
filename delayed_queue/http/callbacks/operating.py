"""What operators do about endpoints and hosts, and having what waited for it come at once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS, transaction
from django.db.models import F
from django.utils.translation import gettext as _

from delayed_queue.db.clock import read_clock
from delayed_queue.db.resilience import never, repeat
from delayed_queue.exceptions import InvalidConfiguration, UrlRefused
from delayed_queue.http.callbacks.breaker import LONGEST_PAUSE
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.callbacks.endpoints import (
    DISABLED_WAIT,
    Place,
    matching,
    place_of,
    prefix_of,
    seal,
)
from delayed_queue.http.jobs.catalogue import kinds_of, wake
from delayed_queue.http.jobs.kinds import Way
from delayed_queue.http.models import Endpoint, Host, Topic
from delayed_queue.http.rates import SharedRate
from delayed_queue.management.tables import show
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

    Raises UrlRefused for a url that callbacks must not go to, InvalidConfiguration for limits
    that are none and for a prefix that is registered already.
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
    """Return the endpoint that is registered as just this prefix, or raise InvalidConfiguration."""
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
    # Not twice: the second time the new secret would become the previous one.
    rotate = partial(
        rows.exclude(secret=sealed).update,
        previous_secret=F("secret"), secret=sealed, rotated_at=read_clock(using),
    )  # fmt: skip
    repeat(using, rotate, doubt=never)
    return secret


def disable_endpoint(
    endpoint: Endpoint, reason: str = BY_OPERATOR, *, using: str = DEFAULT_DB_ALIAS
) -> bool:
    """Send nothing more to it, its jobs wait; False if that is so already."""
    disable = partial(Endpoint.objects.disable, endpoint.pk, reason, using=using)
    return repeat(using, disable, doubt=never)


def enable_endpoint(endpoint: Endpoint, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Send to it again; False if it was not disabled.

    Workers know within seconds; jobs that were deferred come within a quarter of an hour, or from
    then on, if ``recall_endpoint`` is called when this has committed.
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
    return len(repeat(using, recall, doubt=never))


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


Options = dict[str, Any]


def _list(command: BaseCommand, options: Options) -> None:
    endpoints = Endpoint.objects.using(options["database"]).order_by("prefix")
    show(command.stdout, list(map(_row, endpoints)), options["format"])


def _row(endpoint: Endpoint) -> Options:
    is_disabled = endpoint.disabled_at is not None
    state = f"disabled: {endpoint.disabled_reason}" if is_disabled else "enabled"
    return {
        "id": endpoint.id, "prefix": endpoint.prefix, "state": state, "limits": _limits(endpoint)
    }  # fmt: skip


def _add(command: BaseCommand, options: Options) -> None:
    secret = register_endpoint(
        options["prefix"],
        per_second=options["rate"],
        burst=options["burst"],
        concurrency=options["concurrency"],
        using=options["database"],
    )
    _show(command, options["prefix"], secret)


def _rotate(command: BaseCommand, options: Options) -> None:
    secret = rotate_secret(_chosen(options), using=options["database"])
    _show(command, options["prefix"], secret)


def _enable(command: BaseCommand, options: Options) -> None:
    chosen = _chosen(options)
    enable_endpoint(chosen, using=options["database"])
    recalled = recall_endpoint(chosen, using=options["database"])
    command.stdout.write(_("Enabled. Workers send again within seconds."))
    said = _("Deferred messages that are due again: %s.")
    command.stdout.write(said % recalled)


def _disable(command: BaseCommand, options: Options) -> None:
    disable_endpoint(_chosen(options), using=options["database"])
    command.stdout.write(_("Disabled. Its messages wait."))


ACTIONS: Final[dict[str, Callable[[BaseCommand, Options], None]]] = {
    "list": _list, "add": _add, "rotate": _rotate, "enable": _enable, "disable": _disable,
}  # fmt: skip


def _chosen(options: Options) -> Endpoint:
    return endpoint_of(options["prefix"], using=options["database"])


def _show(command: BaseCommand, url: str, secret: str) -> None:
    _, prefix = prefix_of(url)
    command.stdout.write(f"{prefix}\n{secret}")
    command.stderr.write("The secret is shown only now; it is stored encrypted.")


def _limits(endpoint: Endpoint) -> str:
    rate = f"{endpoint.per_second:g}/s" if endpoint.per_second is not None else "any rate"
    many = endpoint.concurrency if endpoint.concurrency is not None else "any number"
    return f"{rate}, {many} at a time"
