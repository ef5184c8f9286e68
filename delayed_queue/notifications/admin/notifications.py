"""Notifications: the list, the page of one with its timeline, cancel and retry."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.filters import ChoiceFilter
from delayed_queue.admin.formats import column, count_column, time_column
from delayed_queue.admin.lists import NEWEST_FIRST, Keyset
from delayed_queue.admin.operations import Call
from delayed_queue.messages import MessageState
from delayed_queue.notifications import managing
from delayed_queue.notifications.admin.base import APP, ServiceOperation, ShownOnly, badge
from delayed_queue.notifications.admin.dashboard import dashboard_view, provider_view
from delayed_queue.notifications.models import (
    CONTENTS,
    OPEN_STATUSES,
    Delivery,
    Notification,
    Reception,
    Status,
)
from delayed_queue.notifications.services import queue_of

_LOOKS: Final = {
    "sent": "due", "refused": "alarm", "failed": "alarm", "ambiguous": "expired",
    "unfinished": "expired",
}  # fmt: skip
MAX_DELIVERIES: Final = 200


class Cancel(ServiceOperation):
    name, label, past = "cancel", _("Cancel"), _("Cancelled")
    help = _("It will not be sent.")
    permission = f"{APP}.cancel_notification"
    refusal = _("because it does not wait")
    is_destructive = True

    def fits(self, row: Any) -> bool:
        return bool(row.status == Status.ENQUEUED)

    def act(self, row: Any, call: Call) -> bool:
        return managing.cancel(row.pk)


class Retry(ServiceOperation):
    """Queues failed notifications again that were certainly not sent."""

    name, past = "retry", _("Queued again")
    label: Any = _("Retry those not sent")
    help = _("Queue it again, due now.")
    permission = f"{APP}.retry_notification"
    refusal = _("because it has not failed, is too late, or may have been sent")
    even_in_doubt = False

    def fits(self, row: Any) -> bool:
        return bool(row.status == Status.FAILED and row.is_in_doubt == self.even_in_doubt)

    def act(self, row: Any, call: Call) -> bool:
        return managing.retry(row.pk, even_in_doubt=self.even_in_doubt)


class RetryInDoubt(Retry):
    """Queues failed notifications again, even if they may have been sent."""

    name = "retry_in_doubt"
    label = _("Retry, including those that may have been sent")
    warning = _("It may have been sent: a retry may send it twice.")
    refusal = _("because it has not failed, or is too late")
    even_in_doubt = True


class StatusFilter(ChoiceFilter):
    """By state, as a range: for one value the planner may scan the primary key instead."""

    title, parameter_name = _("state"), "status"

    offered: ClassVar = {
        each.value: (capfirst(each.label), Q(status__gte=each, status__lte=each)) for each in Status
    }


_BY_STATUS: Final = Keyset("status", is_text=True, descending=True)


@admin.register(Notification)
class NotificationAdmin(ShownOnly):
    """Newest first; recipients and texts need a permission of their own."""

    list_display = (
        "id_column", "state", "channel_column", "about_column", "tenant", "attempts_column",
        "provider_column", "age_column",
    )  # fmt: skip
    list_display_links = ("id_column",)
    list_filter = (StatusFilter,)
    search_fields = ("=id",)
    search_help_text = _("An id, exactly as the API returned it.")
    change_list_template = f"admin/{APP}/notification/change_list.html"
    change_form_template = "admin/delayed_queue/row_detail.html"
    operations = (Cancel(), Retry(), RetryInDoubt())
    fieldsets = (
        (None, {"fields": (
            "state", "channel_column", "about_column", "tenant", "attempts_column",
            "provider_column",
        )}),
        (_("Timeline"), {"fields": ("timeline",)}),
        (_("Contents"), {"fields": (
            "recipient", "subject", "body_shown", "html_shown", "mail_shown", "dedupe_key",
            "replies",
        )}),
    )  # fmt: skip

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(partial(dashboard_view, self))
        one = self.admin_site.admin_view(partial(provider_view, self))
        return [
            path("dashboard/", view, name=f"{APP}_dashboard"),
            path("dashboard/<path:name>/", one, name=f"{APP}_provider"),
            *super().get_urls(),
        ]

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).defer(*CONTENTS)
        return rows

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return _BY_STATUS if StatusFilter.parameter_name in request.GET else NEWEST_FIRST

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if not search_term:
            return queryset, False
        id_ = managing.as_id(search_term.strip())
        return (queryset.none() if id_ is None else queryset.filter(pk=id_)), False

    def list_title(self, request: HttpRequest) -> str:
        status = request.GET.get("status")
        if status not in Status.values:
            return str(_("All notifications"))
        return str(_("Notifications: %(state)s") % {"state": Status(status).label})

    # An id begins with its time; its end differs within a minute.
    id_column = column(
        _("id"), lambda row: format_html('<code title="{}">…{}</code>', row.id, str(row.id)[-12:])
    )
    state = column(_("state"), lambda row: badge(row.status))
    attempts_column = count_column(_("attempts"), "attempts")
    age_column = time_column(_("accepted"), "created_at")
    channel_column = column(
        _("channel"), lambda row: _with_more(row.get_channel_display(), row.priority)
    )
    provider_column = column(_("outcome"), lambda row: _outcome(row))

    @admin.display(description=_("about"))
    def about_column(self, row: Notification) -> SafeString:
        template = f"{row.template} v{row.template_version}" if row.template else _("written out")
        return _with_more(template, row.category)

    # The page of one

    def title_of(self, row: Any) -> str:
        return _("Notification %(id)s") % {"id": row.id}

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        may_see = self.may(request, f"{APP}.view_recipient")
        return self.fieldsets if may_see else self.fieldsets[:-1]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [name for _, options in self.fieldsets for name in options["fields"]]

    body_shown = column(_("text"), lambda row: row.body and formats.block(row.body))
    html_shown = column(_("HTML"), lambda row: row.html and formats.block(row.html))

    mail_shown = column(
        _("copies and attachments"), lambda row: row.mail and formats.block(_mail_text(row.mail))
    )

    @admin.display(description=_("what happened"))
    def timeline(self, row: Any) -> SafeString:
        return formats.timeline(list(_events(row)), row.read_at)

    @admin.display(description=_("replies of providers"))
    def replies(self, row: Any) -> SafeString:
        details = [each.detail for each in _deliveries(row) if each.detail]
        return formats.block("\n".join(details)) if details else formats.NOTHING


def _mail_text(mail: Any) -> str:
    """Return a line for each copy, header and attachment."""
    lines = [("Cc", ", ".join(mail.get("cc", ()))), ("Reply-To", mail.get("replyTo"))]
    for each in mail.get("attachments", ()):
        size = f"{len(each.get('content', '')) * 3 // 4} bytes"
        lines.append((each["name"], each.get("url", size)))
    lines += mail.get("headers", {}).items()
    return "\n".join(f"{name}: {value}" for name, value in lines if value)


def _with_more(first: Any, more: Any) -> SafeString:
    return format_html('{} <span class="dq-quiet">{}</span>', first, more)


def _outcome(row: Notification) -> SafeString:
    words = [each for each in (row.provider, row.outcome, row.code_not_in_outcome) if each]
    return _with_more(words[0], " · ".join(words[1:])) if words else formats.NOTHING


def _deliveries(row: Notification) -> Any:
    return row.deliveries.order_by("-id")[:MAX_DELIVERIES]


def _events(row: Notification) -> Any:
    """Yield past and expected events, each with its time."""
    yield row.created_at, _("accepted from %(tenant)s") % {"tenant": row.tenant}
    if row.status == Status.PROCESSING:
        yield row.started_at, _("attempt %(number)s started") % {"number": row.attempts}
    if row.status in OPEN_STATUSES:
        yield row.expires_at, _("too late after this")
    if row.status == Status.ENQUEUED:
        yield _next_attempt(row)
    for each in _deliveries(row):
        yield each.at, _call(each)
    yield row.delivery_at, Reception(row.delivery).label
    yield row.ended_at, ": ".join(filter(None, (str(Status(row.status).label), row.outcome)))


def _next_attempt(row: Any) -> tuple[Any, Any]:
    """Return when a dispatcher may take it: when its message is due."""
    stored = queue_of(row.priority, row.channel).read(str(row.pk))
    if stored is None:
        return row.read_at, _("it has no message; it becomes FAILED within minutes")
    if stored.state is MessageState.LEASED:
        return stored.scheduled_at, _("a dispatcher holds its message until then")
    return stored.scheduled_at, _("attempt %(number)s is due then") % {"number": row.attempts + 1}


def _call(delivery: Delivery) -> SafeString:
    took = "" if delivery.duration_ms is None else f"{formats.number(delivery.duration_ms)} ms"
    return format_html(
        "{} {}, {} {} {} {}",
        _("attempt"), delivery.attempt, delivery.provider or _("a dispatcher that died"),
        formats.state(_LOOKS[delivery.outcome], delivery.get_outcome_display()), took,
        delivery.error_class,
    )  # fmt: skip
