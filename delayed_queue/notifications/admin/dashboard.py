"""The service at a glance: states, queues, providers, and what failed last."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import human, moment, number, per_second, percent, relative
from delayed_queue.db.clock import database_now
from delayed_queue.notifications import managing, monitor
from delayed_queue.notifications.admin.base import APP, ShownOnly, badge
from delayed_queue.notifications.models import Channel, Priority, Status
from delayed_queue.notifications.monitor import DispatchQueue, ProviderFigures
from delayed_queue.notifications.services import USING

LATE: Final = {
    "urgent": timedelta(seconds=10), "normal": timedelta(minutes=5), "bulk": timedelta(hours=1),
}  # fmt: skip
LATEST_FAILURES: Final = 10
ALARMING_SHARE: Final = 0.05


def dashboard_view(model_admin: ShownOnly, request: HttpRequest) -> HttpResponse:
    context = {
        "title": _("Notifications at a glance"),
        "may_view_parked": model_admin.may(request, f"{APP}.view_parkedrequest"),
        **_figures(),
    }
    return model_admin.page(request, f"{APP}/notification/dashboard", context)


def provider_view(model_admin: ShownOnly, request: HttpRequest, name: str) -> HttpResponse:
    """Show what became of one provider's mail."""
    received = monitor.received(name)
    calls = monitor.providers(monitor.WEEK, monitor.EVENTS)
    sent = sum(each.sent for each in calls if each.name == name)
    is_capped = received.is_capped or sum(each.calls for each in calls) >= monitor.EVENTS
    context = {
        "title": _("Provider %(name)s") % {"name": name},
        "counts": [
            (_("Sent"), number(sent)),
            (_("Delivered"), number(received.delivered)),
            (_("Bounced"), number(received.bounced)),
            (_("Complaints"), number(received.complained)),
        ],
        "rate": percent(received.complaint_rate, 2),
        "is_alarming": received.complaint_rate > monitor.MOST_COMPLAINTS,
        "limit": percent(monitor.MOST_COMPLAINTS),
        "cap": number(monitor.EVENTS) if is_capped else "",
    }
    return model_admin.page(request, f"{APP}/notification/provider", context)


def _figures() -> dict[str, Any]:
    now = database_now(USING)
    queues, providers = monitor.queues(), monitor.providers()
    failed = managing.page([Status.FAILED], None, None, LATEST_FAILURES).items
    ages = [each.depth.oldest_due_age for each in queues if each.depth.oldest_due_age]
    return {
        "states": [(badge(state), state, count) for state, count in monitor.states().items()],
        "queues": [_row_of(each) for each in queues],
        "providers": [_provider(each, now) for each in providers],
        "accepted": per_second(monitor.accepted_per_second(now)),
        "sent": per_second(monitor.sent_per_second(providers)),
        "oldest": human(max(ages)) if ages else "",
        "is_late": any(map(_is_late, queues)),
        "calls_cap": number(monitor.CALLS),
        "cap": number(monitor.CAP),
        "parked": monitor.parked(),
        "failures": [(each, _ago(each.ended_at, now)) for each in failed],
    }


def _is_late(queue: DispatchQueue) -> bool:
    age = queue.depth.oldest_due_age
    return age is not None and age > LATE[queue.priority]


def _row_of(queue: DispatchQueue) -> dict[str, Any]:
    age = queue.depth.oldest_due_age
    return {
        "priority": Priority(queue.priority).label,
        "channel": Channel(queue.channel).label,
        "depth": queue.depth,
        "age": human(age) if age else "",
        "is_late": _is_late(queue),
    }


def _provider(figures: ProviderFigures, now: datetime) -> dict[str, Any]:
    share = figures.share_failing
    return {
        "counts": [
            (_("Sent"), number(figures.sent)),
            (_("Failed"), number(figures.failed)),
            (_("In doubt"), number(figures.doubtful)),
            (_("Refused"), number(figures.refused)),
        ],
        "last_error": figures.last_error,
        "is_known": bool(figures.name),
        "name": figures.name or _("dispatcher lost"),
        # A doubt after a lost dispatcher is no provider's failure.
        "share": percent(share) if figures.name else "—",
        "percent": round(share * 100) if figures.name else 0,
        "is_failing": bool(figures.name) and share > ALARMING_SHARE,
        "last_failure": _ago(figures.last_failure_at, now),
    }


def _ago(at: datetime | None, now: datetime) -> Any:
    return "" if at is None else moment(at, relative(min(at, now), now))
