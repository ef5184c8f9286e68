"""Notifications: the list, the page of one with its timeline, cancelling and trying again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from delayed_queue.admin import formats
from delayed_queue.admin.formats import column
from delayed_queue.admin.operations import Call, Report
from delayed_queue.messages import MessageState
from delayed_queue.notifications import managing
from delayed_queue.notifications.admin.base import (
    RECIPIENT,
    CountedOperation,
    NewestFirst,
    RecipientFilter,
    ShownOnly,
    StatusFilter,
    as_id,
    badge,
    may,
)
from delayed_queue.notifications.admin.dashboard import dashboard_view
from delayed_queue.notifications.models import (
    OPEN_STATUSES,
    Channel,
    Delivery,
    Notification,
    Status,
)
from delayed_queue.notifications.recipients import problem_with, recipient_hash
from delayed_queue.notifications.services import queue_of

_CLASSES: Final = {
    "sent": "due",
    "refused": "alarm",
    "failed": "alarm",
    "ambiguous": "expired",
    "unfinished": "expired",
}


def timeline_of(
    row: Notification, deliveries: Sequence[Delivery], now: datetime, *, with_details: bool
) -> SafeString:
    """Return past and future events in order, with now in its place."""
    events: list[Any] = [(row.created_at, _("accepted from %(tenant)s") % {"tenant": row.tenant})]
    if row.status == Status.PROCESSING:
        events.append((row.started_at, _("attempt %(number)s started") % {"number": row.attempts}))
    if row.expires_at is not None and row.status in OPEN_STATUSES:
        events.append((row.expires_at, _("too late after this")))
    if row.status == Status.ENQUEUED:
        events.append(_next_attempt(row, now))
    events += [(each.at, _call(each, with_details)) for each in deliveries]
    if row.ended_at is not None:
        outcome = f": {row.outcome}" if row.outcome else ""
        events.append((row.ended_at, f"{Status(row.status).label}{outcome}"))
    return formats.timeline(events, now)


def _next_attempt(row: Notification, now: datetime) -> tuple[datetime, Any]:
    """Return when a dispatcher may take it: when its message is due."""
    stored = queue_of(row.priority, row.channel).read(str(row.pk))
    if stored is None:
        return now, _("it has no message; it becomes FAILED within minutes")
    if stored.state is MessageState.LEASED:
        return stored.scheduled_at, _("a dispatcher holds its message until then")
    return stored.scheduled_at, _("attempt %(number)s is due then") % {"number": row.attempts + 1}


def _call(delivery: Delivery, with_details: bool) -> SafeString:
    took = (
        ""
        if delivery.duration_ms is None
        else _(" in %(milliseconds)s ms") % {"milliseconds": formats.number(delivery.duration_ms)}
    )
    told = " · ".join(
        each for each in (delivery.error_class, delivery.detail if with_details else "") if each
    )
    return format_html(
        '{} {}, {} <span class="dq-state dq-{}" title="{}">{}</span>{} {}',
        _("attempt"),
        delivery.attempt,
        delivery.provider or _("a dispatcher that died"),
        _CLASSES[delivery.outcome],
        delivery.outcome,
        Delivery.Outcome(delivery.outcome).label,
        took,
        told,
    )


TEXTS: Final = ("recipient", "recipient_hash", "subject", "body", "html")
MAX_DELIVERIES: Final = 200
HIDDEN: Final = _("Hidden: needs the permission delayed_queue_notifications.view_recipient.")


class Cancel(CountedOperation):
    """Cancels waiting notifications."""

    name, label = "cancel_selected", _("Cancel")
    help = _("It will not be sent.")
    permission = "delayed_queue_notifications.cancel_notification"
    changed_text = _("Cancelled: %(number)s.")
    skipped_text = _("Skipped: %(number)s. Only waiting notifications qualify.")
    is_destructive = True

    def fits(self, row: Any) -> bool:
        return bool(row.status == Status.ENQUEUED)

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return managing.cancel(row.pk)

    def audit(self, row: Any, call: Call) -> str:
        return f"cancel of {row.pk}"


class RetryDoubtful(CountedOperation):
    """Queues failed notifications again, even if they may have been sent."""

    name = "retry_doubtful_selected"
    label: Any = _("Retry, including those that may have been sent")
    help = _("Queue it again, due now.")
    permission = "delayed_queue_notifications.retry_notification"
    changed_text = _("Queued again: %(number)s.")
    skipped_text: Any = _(
        "Skipped: %(number)s. Only failed notifications that are not too late qualify."
    )
    even_in_doubt = True

    def fits(self, row: Any) -> bool:
        return bool(row.status == Status.FAILED)

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return managing.retry(row.pk, even_in_doubt=self.even_in_doubt)

    def audit(self, row: Any, call: Call) -> str:
        return f"retry of {row.pk}"


class Retry(RetryDoubtful):
    name, label = "retry_selected", _("Retry those not sent")
    skipped_text = _(
        "Skipped: %(number)s. Only failed notifications that are not too late and were "
        "certainly not sent qualify."
    )
    even_in_doubt = False


# The operations of the page of one notification, by the name in their address.
_OF_ONE: Final = {"cancel": Cancel(), "retry": RetryDoubtful()}


def _text(words: Any, show: Callable[[Any], Any]) -> Any:
    """Return a field that needs the permission to see recipients."""
    return column(words, lambda row: show(row) if row.shows_texts else formats.quiet(HIDDEN))


@admin.register(Notification)
class NotificationAdmin(ShownOnly):
    """Newest first; recipients and texts need a permission of their own."""

    list_display = (
        "id_column", "status_column", "channel_column", "about_column", "tenant",
        "attempts_column", "provider_column", "age_column",
    )  # fmt: skip
    list_display_links = ("id_column",)
    list_filter = (StatusFilter, RecipientFilter)
    search_fields = ("=id",)
    search_help_text = _("An id, exactly as the API returned it.")
    change_list_template = "admin/delayed_queue_notifications/notification/change_list.html"
    change_form_template = "admin/delayed_queue_notifications/notification/detail.html"
    operations = (Cancel(), Retry(), RetryDoubtful())
    fieldsets = (
        (None, {"fields": ("state", "about", "asked", "attempts_column", "provider_column")}),
        (_("Timeline"), {"fields": ("timeline",)}),
        (
            _("Contents"),
            {"fields": ("recipient_shown", "subject_shown", "body_shown", "html_shown")},
        ),
    )

    def get_urls(self) -> Any:
        wrap = self.admin_site.admin_view
        return [
            path("dashboard/", wrap(self.dashboard), name="delayed_queue_notifications_dashboard"),
            path("find/", wrap(require_POST(self.find)), name="delayed_queue_notifications_find"),
            path("<uuid:id_>/operate/<str:operation>/", wrap(require_POST(self.operate_one)),
                 name="delayed_queue_notifications_operate"),
            *super().get_urls(),
        ]  # fmt: skip

    def dashboard(self, request: HttpRequest) -> HttpResponse:
        return dashboard_view(self, request)

    def find(self, request: HttpRequest) -> HttpResponse:
        """Turn a posted recipient into a hash: addresses do not belong into URLs, and so logs."""
        if not may(request, "view_recipient"):
            raise PermissionDenied
        channel = request.POST.get("channel", "")
        recipient = request.POST.get("recipient", "").strip()
        if channel not in Channel.values or not recipient:
            text = _("Choose a channel and a recipient.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(self.list_url())
        if problem := problem_with(channel, recipient):
            # An empty list would read as "nothing was sent to them".
            said = _("The recipient %(problem)s.") % {"problem": problem}
            self.message_user(request, said, messages.WARNING)
            return HttpResponseRedirect(self.url("delayed_queue_notifications_dashboard"))
        return HttpResponseRedirect(
            self.list_url(**{RECIPIENT: recipient_hash(channel, recipient).hex()})
        )

    def operate_one(self, request: HttpRequest, id_: uuid.UUID, operation: str) -> HttpResponse:
        """Cancel or retry the notification whose page was open."""
        if operation not in _OF_ONE:
            raise PermissionDenied
        call = Call(self.get_queryset(request), [str(id_)], request.user)
        self.perform(request, _OF_ONE[operation], call)
        url = self.url("delayed_queue_notifications_notification_change", id_)
        return HttpResponseRedirect(url)

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(read_at=Now())
        return rows.defer(*TEXTS)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[NewestFirst]:
        return NewestFirst

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False

    def list_title(self, request: HttpRequest) -> str:
        status = request.GET.get("status")
        if status not in Status.values:
            return str(_("All notifications"))
        return str(_("Notifications: %(state)s") % {"state": Status(status).label})

    # An id begins with its time; its end differs within a minute.
    id_column = column(
        _("id"),
        lambda row: format_html('<code title="{}">…{}</code>', row.id, str(row.id)[-12:]),
    )
    status_column = column(_("state"), lambda row: badge(row.status))
    attempts_column = column(_("attempts"), lambda row: formats.number(row.attempts))
    age_column = column(_("accepted"), lambda row: formats.since(row.created_at, row.read_at))

    @admin.display(description=_("channel"))
    def channel_column(self, row: Notification) -> SafeString:
        return format_html(
            '{} <span class="dq-quiet">{}</span>', row.get_channel_display(), row.priority
        )

    @admin.display(description=_("about"))
    def about_column(self, row: Notification) -> SafeString:
        template = f"{row.template} v{row.template_version}" if row.template else _("written out")
        return format_html('{} <span class="dq-quiet">{}</span>', template, row.category)

    @admin.display(description=_("outcome"))
    def provider_column(self, row: Notification) -> SafeString:
        words = [each for each in (row.provider, row.outcome, row.code_untold) if each]
        if not words:
            return formats.NOTHING
        first, *rest = words
        # The outcome is our own word; the page of the delivery has the provider's answer.
        return format_html('{} <span class="dq-quiet">{}</span>', first, " · ".join(rest))

    # The page of one

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        id_ = as_id(object_id)
        queryset = self.get_queryset(request)
        if may(request, "view_recipient"):
            queryset = queryset.defer(None)
        found = None if id_ is None else queryset.filter(pk=id_).first()
        if found is not None:
            found.shows_texts = may(request, "view_recipient")
        return found

    def title_of(self, row: Any) -> str:
        return _("Notification %(id)s") % {"id": row.id}

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [name for _, options in self.fieldsets for name in options["fields"]]

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        fitting = {name: each for name, each in _OF_ONE.items() if each.fits(kwargs["obj"])}
        context["buttons"] = [
            (self.url("delayed_queue_notifications_operate", kwargs["obj"].pk, name), each)
            for name, each in fitting.items()
            if self.allows(request, each)
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    state = column(_("state"), lambda row: badge(row.status))

    @admin.display(description=_("about"))
    def about(self, row: Notification) -> SafeString:
        return format_html("{}, {}", self.channel_column(row), self.about_column(row))

    @admin.display(description=_("requested by"))
    def asked(self, row: Any) -> SafeString:
        # Often made of a customer's name or address.
        shown = row.dedupe_key if row.shows_texts else _("(hidden)")
        key = _(", dedupe key %(key)s") % {"key": shown} if row.dedupe_key else ""
        return format_html("{}, {}{}", row.tenant, row.get_source_display(), key)

    @admin.display(description=_("what happened"))
    def timeline(self, row: Any) -> SafeString:
        deliveries = list(row.deliveries.order_by("-id")[:MAX_DELIVERIES])
        return timeline_of(row, deliveries, row.read_at, with_details=row.shows_texts)

    recipient_shown = _text(_("recipient"), lambda row: formats.key_label(row.recipient))
    subject_shown = _text(_("subject"), lambda row: row.subject and formats.block(row.subject))
    body_shown = _text(_("text"), lambda row: row.body and formats.block(row.body))
    html_shown = _text(_("HTML"), lambda row: row.html and formats.block(row.html))
