"""Events of providers: what became of a mail after it was accepted."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, Protocol

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import transaction
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.utils.module_loading import import_string
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from delayed_queue.db.clock import database_now
from delayed_queue.db.resilience import never, repeat
from delayed_queue.logs import log
from delayed_queue.notifications.conf import cached, get_settings
from delayed_queue.notifications.managing import suppress_once
from delayed_queue.notifications.models import OWN_ID, Notification, SoftBounce, Suppression
from delayed_queue.notifications.recipients import problem_with, recipient_hash
from delayed_queue.notifications.services import USING, lock, or_unavailable

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


# Names of a soft bounce in providers' own events: Anymail calls most of them bounces. The numbers
# are classes of SparkPost.
_MARKS: Final = frozenset(("event", "type", "bouncetype", "bounce_class"))
_SOFT: Final = re.compile(r"soft[ _]?bounced?|transient|2[0-4]|70", re.IGNORECASE)


def is_soft(raw: Any) -> bool:
    """Return whether a provider's own event is of a soft bounce."""
    return isinstance(raw, Mapping) and any(
        is_soft(each) or (name.lower() in _MARKS and bool(_SOFT.fullmatch(str(each))))
        for name, each in raw.items()
    )


def _of_anymail(event: Any) -> Event:
    kind = Kind(event.event_type)
    return Event(
        Kind.DEFERRED if kind is Kind.BOUNCED and is_soft(event.esp_event) else kind,
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
    found = _found(event.message_id)
    if found is None:
        return "unknown"
    channel, stored_hash = found.channel, bytes(found.recipient_hash)
    at = min(event.at or database_now(USING), database_now(USING))
    is_given = event.recipient and not problem_with(channel, event.recipient)
    hashed = recipient_hash(channel, event.recipient) if is_given else stored_hash
    if event.kind is Kind.DEFERRED:
        return "applied" if _count_soft_bounce(channel, hashed, at) else "unchanged"
    # The latest by the provider's time counts.
    rows = Notification.objects.filter(Q(delivery_at=None) | Q(delivery_at__lt=at), pk=found.pk)
    if not rows.update(delivery=str(event.kind), delivery_at=at):
        return "unchanged"
    if event.kind is Kind.COMPLAINED:
        suppress_once(channel, hashed, "", Suppression.Reason.COMPLAINT)
    elif event.kind is Kind.BOUNCED and event.is_hard:
        suppress_once(channel, hashed, "", Suppression.Reason.BOUNCE)
    return "applied"


def _found(message_id: str) -> Notification | None:
    """Return the notification of our Message-ID, or of the id that the provider returned.

    Reads: the primary key, notification_provider_id.
    """
    rows = Notification.objects.only("channel", "recipient_hash")
    if own := _OURS.match(message_id):
        return rows.filter(pk=own[1]).first()
    given = rows.exclude(provider_id="").exclude(provider_id__regex=OWN_ID)
    return given.filter(provider_id=message_id).order_by("-pk").first()


def _count_soft_bounce(channel: str, hashed: bytes, at: datetime) -> bool:
    """Count a soft bounce, once for each time that the provider names."""
    most, period = get_settings().SOFT_BOUNCES
    # Two events at once would not see each other's row.
    lock(f"notifications.soft-bounces:{hashed.hex()}")
    rows = SoftBounce.objects.filter(recipient_hash=hashed)
    _, is_new = rows.get_or_create(recipient_hash=hashed, at=at)
    if is_new and rows.filter(at__gt=at - period).count() >= most:
        suppress_once(channel, hashed, "", Suppression.Reason.BOUNCE)
    return is_new
