"""The service at a glance: states, queues, providers, and what failed last."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import human, moment, number, per_second, percent, relative
from delayed_queue.db.clock import database_now
from delayed_queue.notifications import managing, monitor
from delayed_queue.notifications.admin.base import ShownOnly, badge, may
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
        "may_find": may(request, "view_recipient"),
        "may_view_parked": may(request, "view_parkedrequest"),
        "channels": Channel.choices,
        **_figures(),
    }
    template = "delayed_queue_notifications/notification/dashboard"
    return model_admin.page(request, template, context)


def _figures() -> dict[str, Any]:
    now = database_now(USING)
    queues, calls = monitor.queues(), monitor.calls()
    oldest = monitor.oldest_due(queues)
    failing = managing.page([Status.FAILED], None, None, LATEST_FAILURES).items
    return {
        "states": [(badge(state), state, count) for state, count in monitor.states().items()],
        "queues": [_row_of(each) for each in queues],
        "providers": [_provider(each, now) for each in calls.providers],
        "accepted": per_second(monitor.accepted_per_second(now)),
        "sent": per_second(calls.sent_per_second),
        "oldest": human(oldest) if oldest else "",
        "is_late": any(_is_late(each) for each in queues),
        "span": human(timedelta(seconds=calls.span)),
        "is_cut": calls.is_cut,
        "calls_cap": number(monitor.CALLS),
        "cap": number(monitor.CAP),
        "parked": monitor.parked(),
        "failures": [
            (each, moment(each.ended_at, relative(min(each.ended_at, now), now)))
            for each in failing
            if each.ended_at is not None
        ],
    }


def _is_late(queue: DispatchQueue) -> bool:
    age = queue.depth.oldest_due_age
    return age is not None and age > LATE[queue.priority]


def _row_of(queue: DispatchQueue) -> dict[str, Any]:
    depth = queue.depth
    return {
        "priority": Priority(queue.priority).label,
        "channel": Channel(queue.channel).label,
        "kind": depth.kind,
        "due": depth.due,
        "leased": depth.leased,
        "scheduled": depth.scheduled,
        "dead": depth.dead,
        "age": human(depth.oldest_due_age) if depth.oldest_due_age else "",
        "is_late": _is_late(queue),
        "is_idle": depth.is_empty,
    }


def _provider(figures: ProviderFigures, now: datetime) -> dict[str, Any]:
    at = figures.last_failure_at
    return {
        "counts": [
            (_("Sent"), number(figures.sent)),
            (_("Failed"), number(figures.failed)),
            (_("In doubt"), number(figures.doubtful)),
            (_("Refused"), number(figures.refused)),
            (_("Half within"), _milliseconds(figures.median_ms)),
            (_("95 % within"), _milliseconds(figures.slow_ms)),
        ],
        "last_error": figures.last_error,
        "name": figures.name or _("dispatcher lost"),
        # A doubt after a lost dispatcher is no provider's failure.
        "share": percent(figures.share_failing) if figures.name else "—",
        "percent": round(figures.share_failing * 100) if figures.name else 0,
        "is_failing": bool(figures.name) and figures.share_failing > ALARMING_SHARE,
        "last_failure": "" if at is None else moment(at, relative(min(at, now), now)),
    }


def _milliseconds(value: int | None) -> str:
    return "—" if value is None else f"{number(value)} ms"
