"""Events of providers: what became of a mail after it was accepted."""

from __future__ import annotations

import logging
import re
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, LiteralString, NamedTuple, Protocol

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import never, repeat
from delayed_queue.logs import log
from delayed_queue.notifications.conf import cached, get_settings
from delayed_queue.notifications.managing import suppress_once
from delayed_queue.notifications.models import Suppression
from delayed_queue.notifications.recipients import problem_with, recipient_hash
from delayed_queue.notifications.services import USING, fetch, or_unavailable

# Keep the latest event by the provider's time. "is_new" is false for late and repeated events, and
# null for one that changes no notification. Reads: the primary key, notification_provider_id.
APPLY: Final[LiteralString] = """
WITH found AS MATERIALIZED (
    SELECT n.id, n.recipient_hash, n.channel
    FROM delayed_queue_notification AS n
    WHERE n.id = %(id)s::uuid
    UNION ALL
    (
        SELECT n.id, n.recipient_hash, n.channel
        FROM delayed_queue_notification AS n
        WHERE %(id)s::uuid IS NULL
            AND n.provider_id = %(provider_id)s::text
            AND n.provider_id <> ''
            AND n.provider_id !~ '^<[0-9a-f-]{36}@'
        ORDER BY n.id DESC
        LIMIT 1
    )
),
changed AS (
    UPDATE delayed_queue_notification AS n
    SET delivery = %(delivery)s::text, delivery_at = %(at)s::timestamptz
    FROM found
    WHERE n.id = found.id
        AND %(delivery)s::text <> 'deferred'
        AND (n.delivery_at IS NULL OR n.delivery_at < %(at)s::timestamptz)
    RETURNING n.id
)
SELECT found.channel, found.recipient_hash, EXISTS (SELECT FROM changed) AS is_new
FROM found
"""

# Record a soft bounce, once for each time that the provider names; return how many the recipient
# has since the start of the period that ends then. Reads: notification_soft_bounce.
SOFTEN: Final[LiteralString] = """
WITH added AS (
    INSERT INTO delayed_queue_notification_soft_bounce (recipient_hash, at)
    VALUES (%(hash)s::bytea, %(at)s::timestamptz)
    ON CONFLICT (recipient_hash, at) DO NOTHING
    RETURNING at
)
SELECT 1 + (
    SELECT count(*)
    FROM delayed_queue_notification_soft_bounce AS b
    WHERE b.recipient_hash = %(hash)s::bytea
        AND b.at > added.at - %(period)s::interval
)
FROM added
"""

_OURS: Final = re.compile(r"<?([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})@")


class Kind(StrEnum):
    """The fate of a mail; DEFERRED is a soft bounce, after which the provider tries again."""

    DELIVERED = "delivered"
    BOUNCED = "bounced"
    COMPLAINED = "complained"
    DEFERRED = "deferred"


class Event(NamedTuple):
    """An event of a provider. ``message_id`` is our Message-ID, or the provider's own id.

    ``is_hard``: the address of a bounce does not exist.
    """

    kind: Kind
    at: datetime | None
    message_id: str
    recipient: str = ""
    is_hard: bool = True


class Source(Protocol):
    """The events of one provider."""

    def read(self, request: HttpRequest) -> Iterable[Event]:
        """Return the events of a request; raise PermissionDenied for a wrong signature."""


class AnymailSource:
    """The events of a provider that django-anymail supports."""

    def __init__(self, view: type[Any], options: Mapping[str, Any]) -> None:
        from anymail.exceptions import AnymailError  # an extra

        try:
            self._view = view(**options)
        except (AnymailError, TypeError) as error:
            raise ImproperlyConfigured(str(error)) from None
        if self._view.warn_if_no_basic_auth and not self._view.basic_auth:
            raise ImproperlyConfigured("its requests need a signature, or a webhook_secret")

    def read(self, request: HttpRequest) -> Iterable[Event]:
        from anymail.exceptions import AnymailWebhookValidationFailure

        try:
            self._view.run_validators(request)
        except AnymailWebhookValidationFailure as error:
            raise PermissionDenied from error
        events = self._view.parse_events(request)
        return [_of_anymail(each) for each in events if each.event_type in _KINDS]


_KINDS: Final = frozenset(map(str, Kind))
# Refusals of a mail that say nothing about its address.
_SOFT_REASONS: Final = ("timed_out", "blocked", "spam")


def _of_anymail(event: Any) -> Event:
    return Event(
        Kind(event.event_type),
        event.timestamp,
        str(event.message_id or ""),
        str(event.recipient or ""),
        event.reject_reason not in _SOFT_REASONS,
    )


@cached
def sources() -> Mapping[str, Source]:
    """Return the sources by the name of the provider; raise ImproperlyConfigured."""
    return {name: _source(name, entry) for name, entry in get_settings().EVENTS.items()}


def _source(name: str, entry: Mapping[str, Any]) -> Source:
    options = dict(entry)
    try:
        kind = import_string(options.pop("kind", ""))
        made: Source = (
            AnymailSource(kind, options) if hasattr(kind, "parse_events") else kind(**options)
        )
    except (ImportError, TypeError, ValueError, ImproperlyConfigured) as error:
        raise ImproperlyConfigured(f"EVENTS[{name!r}] cannot be used: {error}") from None
    return made


@login_not_required
@csrf_exempt
@require_http_methods(["HEAD", "POST"])
def receive(request: HttpRequest, provider: str) -> HttpResponse:
    """Apply the events of a provider; unknown notifications are counted in the reply."""
    source = sources().get(provider)
    if source is None:
        raise Http404
    # Providers test an address by HEAD.
    if request.method == "HEAD":
        return HttpResponse()
    try:
        events = list(source.read(request))
    # From the provider's code: a body that it cannot read.
    except (ValueError, LookupError, TypeError, AttributeError, ImproperlyConfigured):
        return HttpResponse(status=400)
    return or_unavailable(lambda: _reply(provider, events))


def _reply(provider: str, events: list[Event]) -> HttpResponse:
    found = repeat(USING, lambda: apply(events), doubt=never)
    counts = {name: found[name] for name in ("applied", "unchanged", "unknown")}
    log(logging.INFO, "provider_events", provider=provider, **counts)
    return JsonResponse(counts)


@transaction.atomic(using=USING)
def apply(events: Iterable[Event]) -> Counter[str]:
    """Apply events in one transaction; return how many were applied, unchanged and unknown."""
    # In the same order in all processes, so that they never deadlock.
    return Counter(_applied(each) for each in sorted(events, key=lambda each: each.message_id))


def _applied(event: Event) -> str:
    own = _OURS.match(event.message_id)
    at = min(event.at or database_now(USING), database_now(USING))
    params = {"provider_id": event.message_id, "delivery": str(event.kind), "at": at}
    rows = fetch(APPLY, params | {"id": uuid.UUID(own[1]) if own else None})
    if not rows:
        return "unknown"
    [(channel, stored_hash, is_new)] = rows
    is_given = event.recipient and not problem_with(channel, event.recipient)
    hashed = recipient_hash(channel, event.recipient) if is_given else bytes(stored_hash)
    if event.kind is Kind.DEFERRED:
        is_new = _count_soft_bounce(channel, hashed, at)
    elif is_new and event.kind is Kind.COMPLAINED:
        suppress_once(channel, hashed, "", Suppression.Reason.COMPLAINT)
    elif is_new and event.kind is Kind.BOUNCED and event.is_hard:
        suppress_once(channel, hashed, "", Suppression.Reason.BOUNCE)
    return "applied" if is_new else "unchanged"


def _count_soft_bounce(channel: str, hashed: bytes, at: datetime) -> bool:
    most, period = get_settings().SOFT_BOUNCES
    rows = fetch(SOFTEN, {"hash": hashed, "at": at, "period": period})
    if rows and rows[0][0] >= most:
        suppress_once(channel, hashed, "", Suppression.Reason.BOUNCE)
    return bool(rows)
