"""The service at a glance: rates, states and providers; and the page of one provider."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import human, moment, number, per_second, percent, relative
from delayed_queue.db.clock import database_now
from delayed_queue.notifications import monitor
from delayed_queue.notifications.admin.base import APP, ShownOnly, badge
from delayed_queue.notifications.monitor import ProviderFigures
from delayed_queue.notifications.services import USING

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
    providers, oldest = monitor.providers(), monitor.longest_wait()
    return {
        "states": [(badge(state), state, count) for state, count in monitor.states().items()],
        "providers": [_provider(each, now) for each in providers],
        "accepted": per_second(monitor.accepted_per_second(now)),
        "sent": per_second(monitor.sent_per_second(providers)),
        "oldest": human(oldest) if oldest else "",
        "calls_cap": number(monitor.CALLS),
        "cap": number(monitor.CAP),
        "parked": monitor.parked(),
    }


def _provider(figures: ProviderFigures, now: datetime) -> dict[str, Any]:
    share, at = figures.share_failing, figures.last_failure_at
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
        "last_failure": at and moment(at, relative(min(at, now), now)),
    }
