"""Authenticate and authorize callers by bearer tokens, in the header and nowhere else."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

from django.http import HttpRequest
from ninja.security.base import SecuritySchema

from delayed_queue.handlers import registry
from delayed_queue.http.api.bodies import Problem, check_count, unauthorized, wait_header
from delayed_queue.http.api.building import in_event_loop, in_thread
from delayed_queue.http.conf import api_settings
from delayed_queue.http.rates import SharedRate
from delayed_queue.http.tokens import ANYBODY, VERBS, Grant, digest_of, find_grant, matches

MAX_CACHED: Final = 1024
_SCHEME: Final = "bearer "
_NO_WAIT: Final = timedelta(0)


class ApiRequest(HttpRequest):
    """A request that was let in; ``auth`` says what for."""

    auth: Grant


class GrantCache:
    """A cache of the tokens in force; the earliest is forgotten first.

    Unknown ones are asked for each time: an attacker makes up new ones, and would displace what
    is of use. The keys are hashes, so that a dump of the memory holds no token.
    """

    def __init__(self, size: int = MAX_CACHED) -> None:
        self.by_digest: OrderedDict[str, tuple[float, Grant]] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def get(self, token: str, find: Callable[[str], Grant | None]) -> Grant | None:
        """Return what the token grants, no longer ago than TOKEN_CACHE."""
        grant = self.at_hand(token)
        if grant is None:
            now, grant = time.monotonic(), find(token)
            self._keep(digest_of(token), now, grant)
        return grant

    def at_hand(self, token: str) -> Grant | None:
        """Return what is known of the token; None when the database must be asked."""
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


class BearerToken:
    """Lets in who has a token with the verb, for the topic that the path names.

    On ``request.auth`` is the Grant. A topic in the body is the view's to check:
    ``demand(request, "add", topic)``. The answer is the same whether the topic exists or not.
    """

    openapi_security_schema = SecuritySchema(type="http", scheme="bearer")
    # To ninja: the answer may have to be awaited.
    is_async = True

    def __init__(self, verb: str | None = None) -> None:
        if verb is not None and verb not in VERBS:
            raise ValueError(f"{verb!r} is not one of the verbs {', '.join(VERBS)}.")
        self.verb = verb

    def __call__(self, request: HttpRequest) -> Grant | Awaitable[Grant]:
        # Beside an asynchronous view: the event loop must not wait for the database.
        return self.let_in_from_loop(request) if in_event_loop() else self.let_in(request)

    def let_in(self, request: HttpRequest) -> Grant:
        """Return the caller's grant; raises Problem 401, 403 or 429."""
        return self._counted(request, grant_of(request))

    async def let_in_from_loop(self, request: HttpRequest) -> Grant:
        """Do as let_in() does, in a thread unless all that it asks for is at hand."""
        token = token_of(request)
        grant = ANYBODY if token is None else cache.at_hand(token)
        if grant is None:
            return await in_thread(self.let_in, request)
        rate = _rate_of(grant)
        wait = _NO_WAIT if rate is None else rate.at_hand()
        if wait is None:
            return await in_thread(self._counted, request, grant)
        return self._admitted(request, grant, wait)

    def _counted(self, request: HttpRequest, grant: Grant) -> Grant:
        rate = _rate_of(grant)
        return self._admitted(request, grant, _NO_WAIT if rate is None else rate.take())

    def _admitted(self, request: HttpRequest, grant: Grant, wait: timedelta) -> Grant:
        # The rate first: who may not must not ask without end.
        if wait:
            raise Problem(429, "too_many_requests", headers=wait_header(wait))
        topic = request.resolver_match.kwargs.get("topic") if request.resolver_match else None
        if self.verb is not None:
            check(grant, self.verb, topic)
        if topic is not None and not serves(topic):
            raise not_served()
        return grant


def _rate_of(grant: Grant) -> SharedRate | None:
    """Return the rate of the token, which all processes share."""
    settings = api_settings()
    per_second = grant.rate or settings.RATE
    if per_second is None or grant.token_id is None:
        return None
    burst = grant.burst or settings.BURST
    return SharedRate(f"token:{grant.token_id}", per_second, burst, settings.DATABASE)


def charge(request: Any, items: int) -> None:
    """Count each item of a bulk against the token's rate, where the request has counted as one.

    Raises Problem 413 for more than are ever granted at once, and 429.
    """
    rate = _rate_of(request.auth)
    if rate is None or items <= 1:
        return
    check_count(range(items), rate.burst)
    wait = rate.take(items - 1)
    if wait:
        # When it comes again, it is counted as one first.
        wait += timedelta(seconds=1 / rate.per_second)
        raise Problem(429, "too_many_requests", headers=wait_header(wait))


def requires(verb: str) -> BearerToken:
    """Return the ``auth`` of a route: a token with that verb, and the topic of the path if any.

    ``@router.get("/topics/{topic}/stats", auth=requires("read"))``
    """
    return BearerToken(verb)


def demand(request: Any, verb: str, topic: str) -> None:
    """Raise Problem 403 unless the caller may do that to the topic, and it is served."""
    demand_scope(request, verb, topic)
    if not serves(topic):
        raise not_served()


def demand_scope(request: Any, verb: str, scope: str) -> None:
    """Raise Problem 403 unless the token names the scope, of an API that serves no topics."""
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
    """Return whether HTTP serves the topic; whether there is one of that name is not asked.

    A queue that the project has a handler for must be named in full: no beginning opens it.
    """
    topics = api_settings().TOPICS
    return topic in topics or (matches(topics, topic) and topic not in registry.by_queue)


def reaches(grant: Grant) -> Callable[[str], bool]:
    """Return what says of a topic whether it is served and the token covers it: for lists."""
    return lambda topic: serves(topic) and grant.covers(topic)


def token_of(request: HttpRequest) -> str | None:
    """Return the token that the request shows, or raise Problem 401.

    With the setting PUBLIC, who shows no token may do everything: then it is None.
    """
    header: str = request.META.get("HTTP_AUTHORIZATION", "")
    if not header and api_settings().PUBLIC:
        return None
    if header[: len(_SCHEME)].lower() != _SCHEME:
        raise unauthorized()
    return header[len(_SCHEME) :].strip()


def grant_of(request: HttpRequest) -> Grant:
    """Return what the request's token grants, or raise Problem 401."""
    token = token_of(request)
    if token is None:
        return ANYBODY
    using = api_settings().DATABASE
    grant = cache.get(token, lambda shown: find_grant(shown, using=using))
    if grant is None:
        raise unauthorized("The token is unknown, expired or revoked.")
    return grant
