"""Authenticate and authorize callers by bearer tokens, in the header and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
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


class ApiRequest(HttpRequest):
    """A request that was let in, with the rights of its token."""

    auth: Grant


# Tokens in force by their hashes, so that a dump of the memory contains none, and when each was
# read. Unknown ones are not kept: an attacker could make up any number and displace the others.
cache: Final[dict[str, tuple[float, Grant]]] = {}


async def let_in(request: HttpRequest, verb: str) -> Grant:
    """Return the caller's grant, if it has the verb for the topic that the path names.

    Raises Problem 401, 403 or 429; the same whether the topic exists or not. A view checks a topic
    in the body itself: ``demand(request, "add", topic)``. Uses a thread only for the database.
    """
    token = token_of(request)
    grant = ANYBODY if token is None else _cached(token)
    if grant is None:
        grant = await in_thread(_read_grant, str(token))
    # The rate comes first: it limits refused calls too.
    if rate := _rate_of(grant):
        wait = rate.at_hand()
        if wait is None:
            wait = await in_thread(rate.take)
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


def allows(request: Any, verb: str, topic: str) -> bool:
    """Return whether the token allows the verb on the topic, and HTTP serves it."""
    return request.auth.may(verb, topic) and serves(topic)


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
    return ANYBODY if token is None else _cached(token) or _read_grant(token)


def _cached(token: str) -> Grant | None:
    """Return the grant of the token, read at most TOKEN_CACHE ago."""
    read_at, grant = cache.get(digest_of(token), (0.0, None))
    age = time.monotonic() - read_at
    return grant if age < api_settings().TOKEN_CACHE.total_seconds() else None


def _read_grant(token: str) -> Grant:
    now, grant = time.monotonic(), find_grant(token, using=api_settings().DATABASE)
    if grant is None:
        cache.pop(digest_of(token), None)
        raise unauthorized("The token is unknown, expired or revoked.")
    if len(cache) >= MAX_CACHED:
        cache.clear()
    cache[digest_of(token)] = (now, grant)
    return grant
