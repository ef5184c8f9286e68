"""The endpoint of a url: the longest registered prefix, or a new one for its origin."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from asgiref.sync import sync_to_async
from yarl import URL

from delayed_queue.db.clock import adatabase_now
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.callbacks.guard import Policy, current_policy, read_url
from delayed_queue.http.callbacks.secrets import in_force, seal, unseal
from delayed_queue.http.models import Endpoint
from delayed_queue.http.rates import SharedRate
from delayed_queue.http.store.callbacks import EndpointRow
from delayed_queue.logs import log
from delayed_queue.messages import from_milliseconds

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


@dataclass(frozen=True, slots=True)
class KnownEndpoint:
    """An endpoint with its opened secrets."""

    row: EndpointRow
    secrets: tuple[str, ...] = field(repr=False)
    rate: SharedRate | None = None

    @property
    def id(self) -> int:
        return self.row.id

    @property
    def is_disabled(self) -> bool:
        return self.row.disabled_at is not None


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


def matching(place: Place, rows: list[EndpointRow]) -> EndpointRow | None:
    """Return the endpoint of the longest prefix that ends at a segment of the path."""
    full = place.origin + place.path
    return max(
        (
            row
            for row in rows
            if full == row.prefix or full.startswith((row.prefix + "/", row.prefix + "?"))
        ),
        key=lambda row: len(row.prefix),
        default=None,
    )


class Endpoints:
    """A cache of the endpoints of one database alias, by their origins."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._known: OrderedDict[str, tuple[float, list[EndpointRow]]] = OrderedDict()
        self._opened: dict[EndpointRow, KnownEndpoint] = {}

    async def of(self, place: Place) -> KnownEndpoint:
        """Return the endpoint; the first use of an origin makes one, with a new secret."""
        until, rows = self._known.get(place.origin, (0.0, []))
        if time.monotonic() >= until:
            rows = await sync_to_async(self._read)(place)
        found = matching(place, rows)
        if found is None:
            rows = await sync_to_async(self._read)(place)
            found = matching(place, rows)
        assert found is not None  # noqa: S101 - the one of the origin matches
        return self._open(found, await adatabase_now(self._using))

    async def disable(self, endpoint: KnownEndpoint, reason: str) -> None:
        """Stop callbacks to it, in all workers, until an operator enables it again."""
        disabled = await sync_to_async(Endpoint.objects.disable)(
            endpoint.id, reason, using=self._using
        )
        if disabled:
            log(logging.WARNING, "endpoint_disabled", endpoint=endpoint.id, reason=reason)
        self._known.clear()

    def _read(self, place: Place) -> list[EndpointRow]:
        read_at = time.monotonic()
        rows = Endpoint.objects.of_origin(place.origin, using=self._using)
        if matching(place, rows) is None:
            secret = seal(new_secret())
            Endpoint.objects.add_once(place.origin, place.origin, secret, using=self._using)
            rows = Endpoint.objects.of_origin(place.origin, using=self._using)
        self._known[place.origin] = (read_at + TRUST_SECONDS, rows)
        self._known.move_to_end(place.origin)
        if len(self._known) > MAX_ORIGINS:
            self._known.popitem(last=False)
        return rows

    def _open(self, row: EndpointRow, now: datetime) -> KnownEndpoint:
        known = self._opened.get(row)
        if known is None or row.rotated_at is not None:
            # The previous secret of a rotation expires.
            if len(self._opened) > MAX_ORIGINS:
                self._opened.clear()
            known = self._opened[row] = _opened(row, self._using, now)
        return known


def _opened(row: EndpointRow, using: str, now: datetime) -> KnownEndpoint:
    rotated_at = None if row.rotated_at is None else from_milliseconds(row.rotated_at)
    sealed = in_force(row.secret, row.previous_secret, rotated_at, now)
    rate = None
    if row.per_second is not None:
        rate = SharedRate(f"endpoint:{row.id}", row.per_second, row.burst, using)
    return KnownEndpoint(row, tuple(unseal(each) for each in sealed), rate)


def _path(url: URL) -> str:
    return url.raw_path if url.raw_path != "/" else ""
