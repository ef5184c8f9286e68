"""The endpoint of a url: the longest registered prefix or a new one, its secrets and its slots."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final

from asgiref.sync import sync_to_async
from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.db import Error
from django.utils.encoding import force_bytes
from yarl import URL

from delayed_queue.db.clock import adatabase_now
from delayed_queue.exceptions import SecretNotReadable
from delayed_queue.http.callbacks.breaker import Deferred
from delayed_queue.http.callbacks.calls import new_secret
from delayed_queue.http.callbacks.guard import Policy, current_policy, read_url
from delayed_queue.http.conf import callback_settings
from delayed_queue.http.models import Endpoint
from delayed_queue.http.rates import SharedRate
from delayed_queue.http.store.callbacks import EndpointRow
from delayed_queue.logs import log
from delayed_queue.messages import MILLISECOND, from_milliseconds

# For so long a worker believes what it read of an endpoint: a switch, a limit, a secret.
TRUST_SECONDS: Final = 2.0
MAX_ORIGINS: Final = 10_000
# How long the messages of an endpoint that is disabled are deferred each time, in seconds: they
# stay, and are sent within that time after it was enabled.
DISABLED_WAIT: Final = (300.0, 900.0)


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of a url: its origin, its path, and ``host:port`` as the breaker knows it.

    ``url`` is what is called.
    """

    origin: str
    path: str
    host: str
    url: str


@dataclass(frozen=True, slots=True)
class KnownEndpoint:
    """An endpoint with its secrets opened, ready to be sent to."""

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
    """Return where a url leads; raises UrlRefused for one that is refused as it stands."""
    target = read_url(url, policy or current_policy())
    parsed = target.parsed
    name = f"[{target.host}]" if ":" in target.host else target.host
    is_default = target.port == {"http": 80, "https": 443}[parsed.scheme]
    authority = name if is_default else f"{name}:{target.port}"
    return Place(
        f"{parsed.scheme}://{authority}", _path(parsed), f"{name}:{target.port}", str(target.url)
    )  # fmt: skip


def prefix_of(url: str) -> tuple[str, str]:
    """Return the origin, and the prefix as it is registered, of a url without a query."""
    place = place_of(url)
    return place.origin, place.origin + place.path.rstrip("/")


def matching(place: Place, rows: list[EndpointRow]) -> EndpointRow | None:
    """Return the endpoint of the longest prefix that ends where a part of the path does."""
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
    """The endpoints of one database alias, as far as this process has met their origins."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._known: OrderedDict[str, tuple[float, list[EndpointRow]]] = OrderedDict()
        self._opened: dict[EndpointRow, KnownEndpoint] = {}

    async def of(self, place: Place) -> KnownEndpoint:
        """Return the endpoint; one for the origin is made at its first use, with a new secret."""
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
        """Have no worker send to it until somebody enables it again."""
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
            # The secret from before a rotation ends by time.
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


# For so long slots are held without being renewed: what a worker that died takes with it. A
# callback ends within its total time-out, and is renewed for before.
HOLD: Final = timedelta(seconds=60)
RENEW_SECONDS: Final = 10.0
# Where there are none left, how often a process asks, and how long a message waits.
ASK_SECONDS: Final = 0.5
LEAVE_SECONDS: Final = 1.0
FEW: Final = 4


@dataclass(slots=True)
class _Held:
    """The slots of one endpoint that this process holds."""

    concurrency: int
    held: int = 0
    used: int = 0
    wanted: int = 0
    asked_at: float = -math.inf
    leaving: asyncio.Task[None] | None = None


class Slots:
    """The slots that this process holds, for one database alias and one event loop.

    It asks for what it uses and what it had to defer since, so that processes with little to do
    leave theirs to the others, at the latest at the next renewal.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._holder = str(uuid.uuid4())
        self._held: dict[int, _Held] = {}
        self._lock = asyncio.Lock()

    async def take(self, endpoint_id: int, concurrency: int) -> None:
        """Take a slot, which ``give`` must follow; raises Deferred when there is none."""
        mine = self._held.setdefault(endpoint_id, _Held(concurrency))
        mine.concurrency = concurrency
        mine.wanted += 1
        now = time.monotonic()
        is_stale = now - mine.asked_at > RENEW_SECONDS
        is_short = mine.used >= mine.held and now - mine.asked_at > ASK_SECONDS
        if is_stale or is_short:
            await self._ask(endpoint_id, mine)
        if mine.used >= min(mine.held, concurrency):
            raise Deferred(ASK_SECONDS * (1 + min(mine.wanted / concurrency, 20) / 2))
        mine.used += 1

    def give(self, endpoint_id: int) -> None:
        mine = self._held[endpoint_id]
        mine.used -= 1
        if mine.used == 0 and mine.held and mine.leaving is None:
            mine.leaving = asyncio.get_running_loop().create_task(self._leave(endpoint_id, mine))

    async def close(self) -> None:
        """Give all back, at the end of the event loop."""
        for endpoint_id, mine in self._held.items():
            if mine.leaving is not None:
                mine.leaving.cancel()
                await asyncio.wait([mine.leaving])
            mine.used = mine.wanted = 0
            mine.asked_at = -math.inf
            if mine.held:
                await self._ask(endpoint_id, mine)

    async def _leave(self, endpoint_id: int, mine: _Held) -> None:
        """Give slots back that are not used any more; but not between two callbacks."""
        await asyncio.sleep(LEAVE_SECONDS)
        mine.leaving = None
        if mine.used == 0 and mine.held:
            mine.wanted, mine.asked_at = 0, -math.inf
            try:
                await self._ask(endpoint_id, mine)
            except Error:
                return  # they run out

    async def _ask(self, endpoint_id: int, mine: _Held) -> None:
        async with self._lock:
            if time.monotonic() - mine.asked_at <= ASK_SECONDS:
                return  # who waited here finds what the one before brought
            mine.asked_at = time.monotonic()
            # More than this one, if there is use for any: others are about to come.
            more = max(mine.wanted, FEW) if mine.wanted else 0
            wanted, mine.wanted = mine.used + more, 0
            mine.held = await sync_to_async(Endpoint.objects.hold_slots)(
                endpoint_id,
                self._holder,
                wanted,
                mine.used,
                concurrency=mine.concurrency,
                timeout=HOLD // MILLISECOND,
                using=self._using,
            )


ROTATION: Final = timedelta(hours=24)
# A part of the keys: with another one, what is stored cannot be opened.
_PURPOSE: Final = b"delayed_queue.http.callbacks.secrets"


def seal(secret: str) -> str:
    """Return the secret as it may be stored, sealed with the newest key."""
    return _box().encrypt(secret.encode()).decode()


def unseal(text: str) -> str:
    """Return the secret of a sealed text; raises SecretNotReadable if no key in force opens it."""
    try:
        return _box().decrypt(text.encode()).decode()
    except InvalidToken as error:
        raise SecretNotReadable from error


def reseal(text: str) -> str:
    """Return the same secret sealed with the newest key, so that older keys can be dropped."""
    try:
        return _box().rotate(text.encode()).decode()
    except InvalidToken as error:
        raise SecretNotReadable from error


def in_force(
    current: str, previous: str, rotated_at: datetime | None, now: datetime
) -> tuple[str, ...]:
    """Return the sealed texts to sign with: the previous one too, for 24 h from its rotation."""
    if not previous or rotated_at is None or now - rotated_at >= ROTATION:
        return (current,)
    return (current, previous)


def _box() -> MultiFernet:
    return _box_of(tuple(_keys()))


def _keys() -> Iterable[bytes]:
    """Yield the keys in force, the one that seals first.

    Django's come last even where there are own ones: what was sealed before those must open.
    """
    own = callback_settings().SECRET_KEYS
    return map(force_bytes, (*own, settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS))


# The derivation and not the sealing is what takes long.
@lru_cache(maxsize=8)
def _box_of(keys: tuple[bytes, ...]) -> MultiFernet:
    return MultiFernet([Fernet(base64.urlsafe_b64encode(_derived(key))) for key in keys])


def _derived(key: bytes) -> bytes:
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=_PURPOSE).derive(key)
