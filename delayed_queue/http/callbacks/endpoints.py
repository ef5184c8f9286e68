"""The endpoint of a url: the longest registered prefix, or a new one for its origin."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from asgiref.sync import sync_to_async
from yarl import URL

from delayed_queue.db.clock import read_clock
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.callbacks.guard import Policy, current_policy, read_url
from delayed_queue.http.callbacks.secrets import in_force, seal, unseal
from delayed_queue.http.models import Endpoint
from delayed_queue.logs import log

# Seconds for which a worker trusts what it read of an endpoint: a switch, a limit, a secret.
TRUST_SECONDS: Final = 2.0
MAX_ORIGINS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of a url: origin, path, ``host:port`` for the breaker, and the url to call."""

    origin: str
    path: str
    host: str
    url: str


def place_of(url: str, policy: Policy | None = None) -> Place:
    """Return the parts of a url; raises UrlRefused if the guard refuses it."""
    target = read_url(url, policy or current_policy())
    parsed = target.parsed
    name = f"[{target.host}]" if ":" in target.host else target.host
    is_default = target.port == {"http": 80, "https": 443}[parsed.scheme]
    authority = name if is_default else f"{name}:{target.port}"
    return Place(
        f"{parsed.scheme}://{authority}", _path(parsed), f"{name}:{target.port}", str(target.url)
    )  # fmt: skip


def prefix_of(url: str) -> tuple[str, str]:
    """Return the origin and the registered prefix of a url without a query."""
    place = place_of(url)
    return place.origin, place.origin + place.path.rstrip("/")


def matching(place: Place, rows: list[Endpoint]) -> Endpoint | None:
    """Return the endpoint of the longest prefix that ends at a segment of the path."""
    full = place.origin + place.path
    fitting = (
        row
        for row in rows
        if full == row.prefix or full.startswith((row.prefix + "/", row.prefix + "?"))
    )
    return max(fitting, key=lambda row: len(row.prefix), default=None)


class Endpoints:
    """A cache of the endpoints of one database alias, by their origins."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._known: OrderedDict[str, tuple[float, list[Endpoint]]] = OrderedDict()
        self._unseal = lru_cache(MAX_ORIGINS)(unseal)

    async def of(self, place: Place) -> Endpoint:
        """Return the endpoint; the first use of an origin makes one, with a new secret."""
        until, rows = self._known.get(place.origin, (0.0, []))
        found = matching(place, rows) if time.monotonic() < until else None
        return found or await sync_to_async(self._read)(place)

    def secrets(self, endpoint: Endpoint, now: datetime) -> list[str]:
        """Return the opened secrets to sign with."""
        sealed = in_force(endpoint.secret, endpoint.previous_secret, endpoint.rotated_at, now)
        return [self._unseal(each) for each in sealed]

    async def disable(self, endpoint: Endpoint, reason: str) -> None:
        """Stop callbacks to it, in all workers, until an operator enables it again."""
        disable = sync_to_async(Endpoint.objects.disable)
        if await disable(endpoint.pk, reason, using=self._using):
            log(logging.WARNING, "endpoint_disabled", endpoint=endpoint.pk, reason=reason)
        self._known.clear()

    def _read(self, place: Place) -> Endpoint:
        read_at = time.monotonic()
        rows = Endpoint.objects.of_origin(place.origin, using=self._using)
        found = matching(place, rows)
        if found is None:
            # One of several workers that meet a new origin makes its endpoint.
            made = {"secret": seal(new_secret()), "created_at": read_clock(self._using)}
            endpoints = Endpoint.objects.using(self._using)
            found, _ = endpoints.get_or_create(made, origin=place.origin, prefix=place.origin)
            rows.append(found)
        self._known[place.origin] = (read_at + TRUST_SECONDS, rows)
        self._known.move_to_end(place.origin)
        if len(self._known) > MAX_ORIGINS:
            self._known.popitem(last=False)
        return found


def _path(url: URL) -> str:
    return url.raw_path if url.raw_path != "/" else ""
