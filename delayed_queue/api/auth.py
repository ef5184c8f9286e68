"""Who is asking, and whether they may: bearer tokens, in the header and nowhere else."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from django.http import HttpRequest
from ninja.security.base import SecuritySchema

from delayed_queue.api.problems import Problem, unauthorized, wait_header
from delayed_queue.api.threads import in_event_loop, in_thread
from delayed_queue.conf import get_settings
from delayed_queue.rates import SharedRate
from delayed_queue.tokens import ANYBODY, VERBS, Grant, digest_of, find_grant

MAX_CACHED: Final = 1024
_SCHEME: Final = "bearer "


class ApiRequest(HttpRequest):
    """A request that was let in; ``auth`` says what for."""

    auth: Grant


class GrantCache:
    """What this process knows of tokens; of those in force only, the earliest forgotten first.

    Unknown ones are asked for each time: an attacker makes up new ones, and would displace what
    is of use. The keys are hashes, so that a dump of the memory holds no token.
    """

    def __init__(self, size: int = MAX_CACHED) -> None:
        self._grants: OrderedDict[str, tuple[float, Grant]] = OrderedDict()
        self._size = size
        self._lock = threading.Lock()

    def get(self, token: str, find: Callable[[str], Grant | None]) -> Grant | None:
        """Return what the token grants, no longer ago than TOKEN_CACHE."""
        digest, now = digest_of(token), time.monotonic()
        with self._lock:
            read_at, grant = self._grants.get(digest, (0.0, None))
        if grant is not None and now - read_at < get_settings().API.TOKEN_CACHE.total_seconds():
            return grant
        found = find(token)
        self._keep(digest, now, found)
        return found

    def _keep(self, digest: str, read_at: float, grant: Grant | None) -> None:
        with self._lock:
            self._grants.pop(digest, None)
            if grant is not None:
                self._grants[digest] = (read_at, grant)
            while len(self._grants) > self._size:
                self._grants.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._grants.clear()


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
            raise ValueError(f"{verb!r} is none of the verbs {', '.join(VERBS)}.")
        self.verb = verb

    def __call__(self, request: HttpRequest) -> Grant | Awaitable[Grant]:
        # Beside an asynchronous view: the event loop must not wait for the database.
        return in_thread(self.let_in, request) if in_event_loop() else self.let_in(request)

    def let_in(self, request: HttpRequest) -> Grant:
        """Return the caller's grant; raises Problem 401, 403 or 429."""
        grant = grant_of(request)
        topic = request.resolver_match.kwargs.get("topic") if request.resolver_match else None
        _count(grant)  # first: who may not must not ask without end
        if self.verb is not None:
            check(grant, self.verb, topic)
        return grant


def _count(grant: Grant) -> None:
    """Take a permit of the token's rate, which all processes share, or raise Problem 429."""
    settings = get_settings().API
    per_second = grant.rate or settings.RATE
    if per_second is None or grant.token_id is None:
        return
    burst = grant.burst or settings.BURST
    wait = SharedRate(f"token:{grant.token_id}", per_second, burst, settings.DATABASE).take()
    if wait:
        raise Problem(429, "too_many_requests", headers=wait_header(wait))


def requires(verb: str) -> BearerToken:
    """Return the ``auth`` of a route: a token with that verb, and the topic of the path if any.

    ``@router.get("/topics/{topic}/stats", auth=requires("read"))``
    """
    return BearerToken(verb)


def demand(request: Any, verb: str, topic: str) -> None:
    """Raise Problem 403 unless the caller may do that to the topic."""
    check(request.auth, verb, topic)


def check(grant: Grant, verb: str, topic: str | None) -> None:
    if not grant.may(verb, topic):
        raise Problem(403, "forbidden", detail="The token does not cover this.")


def grant_of(request: HttpRequest) -> Grant:
    """Return what the request's token grants, or raise Problem 401.

    With the setting PUBLIC, who shows no token may do everything.
    """
    header = request.META.get("HTTP_AUTHORIZATION", "")
    settings = get_settings().API
    if not header and settings.PUBLIC:
        return ANYBODY
    if header[: len(_SCHEME)].lower() != _SCHEME:
        raise unauthorized()
    token = header[len(_SCHEME) :].strip()
    grant = cache.get(token, lambda shown: find_grant(shown, using=settings.DATABASE))
    if grant is None:
        raise unauthorized("The token is unknown, expired or revoked.")
    return grant
