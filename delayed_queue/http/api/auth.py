"""Authenticate and authorize callers by bearer tokens, in the header and nowhere else."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.http import HttpRequest

from delayed_queue.handlers import registry
from delayed_queue.http.api.bodies import check_count
from delayed_queue.http.api.pool import in_thread
from delayed_queue.http.api.problems import Problem, too_many_requests, unauthorized
from delayed_queue.http.conf import api_settings
from delayed_queue.http.rates import SharedRate
from delayed_queue.http.tokens import ANYBODY, Grant, digest_of, find_grant, matches

MAX_CACHED: Final = 1024
_SCHEME: Final = "bearer "
_NO_WAIT: Final = timedelta(0)


class ApiRequest(HttpRequest):
    """A request that was let in, with the rights of its token."""

    auth: Grant


class GrantCache:
    """A cache of the tokens in force; the oldest entry is dropped first.

    Unknown tokens are not cached: an attacker could make up any number and displace the others.
    The keys are hashes, so that a dump of the memory contains no token.
    """

    def __init__(self, size: int = MAX_CACHED) -> None:
        self.by_digest: OrderedDict[str, tuple[float, Grant]] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def get(self, token: str, find: Callable[[str], Grant | None]) -> Grant | None:
        """Return the grant of the token, read at most TOKEN_CACHE ago."""
        grant = self.at_hand(token)
        if grant is None:
            now, grant = time.monotonic(), find(token)
            self._keep(digest_of(token), now, grant)
        return grant

    def at_hand(self, token: str) -> Grant | None:
        """Return the cached grant; None when the database must be read."""
        with self._lock:
            read_at, grant = self.by_digest.get(digest_of(token), (0.0, None))
        age = time.monotonic() - read_at
        return grant if age < api_settings().TOKEN_CACHE.total_seconds() else None

    def _keep(self, digest: str, read_at: float, grant: Grant | None) -> None:
        with self._lock:
            self.by_digest.pop(digest, None)
            if grant is not None:
                self.by_digest[digest] = (read_at, grant)
            while len(self.by_digest) > self._size:
                self.by_digest.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self.by_digest.clear()


cache: Final = GrantCache()


def let_in(request: HttpRequest, verb: str) -> Grant:
    """Return the caller's grant, if it has the verb for the topic that the path names.

    Raises Problem 401, 403 or 429; the same whether the topic exists or not. A view checks a topic
    in the body itself: ``demand(request, "add", topic)``.
    """
    return _counted(request, verb, grant_of(request))


async def let_in_from_loop(request: HttpRequest, verb: str) -> Grant:
    """Do as let_in() does, in a thread unless this process knows all that it needs."""
    token = token_of(request)
    grant = ANYBODY if token is None else cache.at_hand(token)
    if grant is None:
        return await in_thread(let_in, request, verb)
    rate = _rate_of(grant)
    wait = _NO_WAIT if rate is None else rate.at_hand()
    if wait is None:
        return await in_thread(_counted, request, verb, grant)
    return _admitted(request, verb, grant, wait)


def _counted(request: HttpRequest, verb: str, grant: Grant) -> Grant:
    rate = _rate_of(grant)
    return _admitted(request, verb, grant, _NO_WAIT if rate is None else rate.take())


def _admitted(request: HttpRequest, verb: str, grant: Grant, wait: timedelta) -> Grant:
    # The rate comes first: it limits refused calls too.
    if wait:
        raise too_many_requests(wait)
    topic = request.resolver_match.kwargs.get("topic") if request.resolver_match else None
    check(grant, verb, topic)
    if topic is not None and not serves(topic):
        raise not_served()
    return grant


def _rate_of(grant: Grant) -> SharedRate | None:
    """Return the rate limit of the token, which all processes share."""
    settings = api_settings()
    per_second = grant.rate or settings.RATE
    if per_second is None or grant.token_id is None:
        return None
    burst = grant.burst or settings.BURST
    return SharedRate(f"token:{grant.token_id}", per_second, burst, settings.DATABASE)


def charge(request: Any, items: int) -> None:
    """Count each item of a bulk against the token's rate; the request has counted as one.

    Raises Problem 413 for more items than the burst, and 429.
    """
    rate = _rate_of(request.auth)
    if rate is None or items <= 1:
        return
    check_count(range(items), rate.burst)
    wait = rate.take(items - 1)
    if wait:
        # The repeated request counts as one first.
        wait += timedelta(seconds=1 / rate.per_second)
        raise too_many_requests(wait)


def demand(request: Any, verb: str, topic: str) -> None:
    """Raise Problem 403 unless the token allows the verb on the topic, and HTTP serves it."""
    demand_scope(request, verb, topic)
    if not serves(topic):
        raise not_served()


def demand_scope(request: Any, verb: str, scope: str) -> None:
    """Raise Problem 403 unless the token allows the verb on a scope that is no topic."""
    check(request.auth, verb, scope)


def check(grant: Grant, verb: str, topic: str | None) -> None:
    if not grant.may(verb, topic):
        raise Problem(403, "forbidden", detail="The token does not allow this.")


def not_served() -> Problem:
    return Problem(
        403, "topic_not_served",
        detail=
            "A queue is a topic only if the server's setting "
            "DELAYED_QUEUE['API']['TOPICS'] lists it.",
    )  # fmt: skip


def serves(topic: str) -> bool:
    """Return whether HTTP serves the topic, whether it exists or not.

    A queue with a handler in the project must be listed in full: no prefix opens it.
    """
    topics = api_settings().TOPICS
    return topic in topics or (matches(topics, topic) and topic not in registry.by_queue)


def reaches(grant: Grant) -> Callable[[str], bool]:
    """Return a filter of topics that are served and that the token covers."""
    return lambda topic: serves(topic) and grant.covers(topic)


def token_of(request: HttpRequest) -> str | None:
    """Return the token of the request, or raise Problem 401.

    None with the setting PUBLIC: a request without a token may then do everything.
    """
    header: str = request.META.get("HTTP_AUTHORIZATION", "")
    if not header and api_settings().PUBLIC:
        return None
    if header[: len(_SCHEME)].lower() != _SCHEME:
        raise unauthorized()
    return header[len(_SCHEME) :].strip()


def grant_of(request: HttpRequest) -> Grant:
    """Return the grant of the request's token, or raise Problem 401."""
    token = token_of(request)
    if token is None:
        return ANYBODY
    using = api_settings().DATABASE
    grant = cache.get(token, partial(find_grant, using=using))
    if grant is None:
        raise unauthorized("The token is unknown, expired or revoked.")
    return grant
