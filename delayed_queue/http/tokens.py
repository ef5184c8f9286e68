"""Bearer tokens: create, find and revoke them, and check what they allow."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from typing import Final

from django.db import DEFAULT_DB_ALIAS, IntegrityError
from django.db.models import Q

from delayed_queue.db.clock import database_now, read_clock
from delayed_queue.db.resilience import Lost, repeat
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.http.models import ApiToken
from delayed_queue.queue.base import nothing

VERBS: Final = ("add", "read", "delete", "consume", "manage", "metrics")
EVERYTHING: Final = "*"
# A name, or a prefix and a star.
_PATTERN: Final = re.compile(r"[^\x00-\x20\x7f*]{0,99}\*?")
_SHAPE: Final = re.compile(r"dq_[A-Za-z0-9_-]{43}")
_SHOWN: Final = 9
# The last use of a token is written at most this often.
_STALE_AFTER: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of the caller of a request."""

    name: str
    topics: tuple[str, ...] = ()
    verbs: frozenset[str] = frozenset()
    rate: float | None = None
    burst: int | None = None
    token_id: int | None = None
    digest: str = field(default="", repr=False)

    def may(self, verb: str, topic: str | None = None) -> bool:
        """Return whether it covers the verb on the topic; without one, on any topic."""
        return verb in self.verbs and (topic is None or self.covers(topic))

    def covers(self, topic: str) -> bool:
        return matches(self.topics, topic)


def matches(patterns: Iterable[str], topic: str) -> bool:
    """Return whether a pattern is the topic, or a prefix of it and a star."""
    return any(
        topic.startswith(each[:-1]) if each.endswith("*") else topic == each for each in patterns
    )


ANYBODY: Final = Grant("public", (EVERYTHING,), frozenset(VERBS))


def digest_of(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def find_grant(token: str, *, using: str = DEFAULT_DB_ALIAS) -> Grant | None:
    """Return what a token grants, and record its use; None if unknown, expired or revoked."""
    if _SHAPE.fullmatch(token) is None:
        return None
    digest = digest_of(token)
    row = repeat(using, partial(_find, digest, using))
    # The index has compared the hash before, not in constant time. That reveals nothing of use: a
    # token cannot be chosen by its hash.
    if row is None or not compare_digest(row.digest, digest):
        return None
    return Grant(
        row.name, tuple(row.topics), frozenset(row.verbs), row.rate, row.burst, row.pk, row.digest
    )


def _find(digest: str, using: str) -> ApiToken | None:
    """Return the token in force, after writing its use if that was not written recently."""
    tokens, now = ApiToken.objects.using(using), database_now(using)
    in_force = Q(expires_at=None) | Q(expires_at__gt=now)
    row = tokens.filter(in_force, digest=digest, disabled_at=None).first()
    if row is not None and (row.last_used_at is None or row.last_used_at <= now - _STALE_AFTER):
        # The filter lets only one of several processes write.
        stale = Q(last_used_at=None) | Q(last_used_at__lte=now - _STALE_AFTER)
        tokens.filter(stale, pk=row.pk).update(last_used_at=now)
    return row


def create_token(
    name: str,
    *,
    verbs: Iterable[str],
    topics: Iterable[str],
    expires_at: datetime | None = None,
    rate: float | None = None,
    burst: int | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> str:
    """Store a new token and return it; it cannot be read again, only its hash is kept.

    ``topics`` are names, or prefixes that end in a star; a star alone is all that HTTP serves.
    """
    _check_name(name)
    _check_rate(rate, burst)
    token = f"dq_{secrets.token_urlsafe(32)}"
    made = ApiToken(
        name=name, prefix=token[:_SHOWN], digest=digest_of(token), topics=_patterns(topics),
        verbs=_verbs(verbs), rate=rate, burst=burst, created_at=read_clock(using),
        expires_at=expires_at,
    )  # fmt: skip
    save = partial(made.save, using=using, force_insert=True)

    def truth(_lost: Lost) -> None:
        if not ApiToken.objects.using(using).filter(digest=made.digest).exists():
            save()

    try:
        repeat(using, save, truth=truth)
    except IntegrityError as error:
        raise InvalidConfiguration(f"There is a token named {name!r} already.") from error
    return token


def revoke_token(name: str, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Disable the token for good; False when there is none of that name in force.

    Server processes obey within the setting ``TOKEN_CACHE``.
    """
    in_force = ApiToken.objects.using(using).filter(name=name, disabled_at=None)
    revoke = partial(in_force.update, disabled_at=read_clock(using))
    return repeat(using, revoke, doubt=nothing) > 0


def list_tokens(*, using: str = DEFAULT_DB_ALIAS) -> Sequence[ApiToken]:
    """Return all tokens, by name."""
    return repeat(using, lambda: list(ApiToken.objects.using(using).order_by("name")))


def _check_name(name: str) -> None:
    if not 0 < len(name) <= 100 or not name.isprintable():
        raise InvalidConfiguration("The name of a token has 1 to 100 printable characters.")


def _check_rate(rate: float | None, burst: int | None) -> None:
    if rate is not None and not 0.001 <= rate <= 100_000:
        raise InvalidConfiguration("The rate of a token is from 0.001 to 100,000 per second.")
    if burst is not None and burst < 1:
        raise InvalidConfiguration("The burst of a token is 1 or more.")


def _verbs(verbs: Iterable[str]) -> list[str]:
    found = sorted(set(verbs))
    if not found or not set(found) <= set(VERBS):
        raise InvalidConfiguration(f"A token needs one or more of the verbs {', '.join(VERBS)}.")
    return found


def _patterns(topics: Iterable[str]) -> list[str]:
    found = sorted(set(topics))
    if not found or not all(each and _PATTERN.fullmatch(each) for each in found):
        raise InvalidConfiguration("A token's topics are names, or prefixes that end in a star.")
    return found
