"""Notifications: the list, the page of one with its timeline, cancelling and trying again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME as CHECKBOX
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_POST

from delayed_queue.admin import formats
from delayed_queue.messages import MessageState
from delayed_queue.notifications import managing
from delayed_queue.notifications.admin.base import (
    RECIPIENT,
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
    "sent": "dq-due",
    "refused": "dq-alarm",
    "failed": "dq-alarm",
    "ambiguous": "dq-expired",
    "unfinished": "dq-expired",
}


def timeline_of(
    row: Notification, deliveries: Sequence[Delivery], now: datetime, *, with_details: bool
) -> SafeString:
    """Return what happened in order, with now in its place and what is still to come behind."""
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
    """Return when a dispatcher may take it, by its message; without one, none ever will."""
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
        '{} {}, {} <span class="dq-state {}" title="{}">{}</span>{} {}',
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
_WAITING: Final = _("Skipped: %(number)s. Only waiting notifications qualify.")
_FAILED: Final = _("Skipped: %(number)s. Only failed notifications that are not too late qualify.")
_NOT_SENT: Final = _(
    "Skipped: %(number)s. Only failed notifications that are not too late and were "
    "certainly not sent qualify."
)
HIDDEN: Final = _("Hidden: needs the permission delayed_queue_notifications.view_recipient.")


@admin.register(Notification)
class NotificationAdmin(ShownOnly):
    """Newest first; who may see recipients sees them, all others see what became of each."""

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
    actions = ("cancel_selected", "retry_selected", "retry_doubtful_selected")
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
            path("<uuid:id_>/operate/<str:operation>/", wrap(require_POST(self.operate)),
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
            return HttpResponseRedirect(reverse("admin:delayed_queue_notifications_dashboard"))
        return HttpResponseRedirect(
            self.list_url(**{RECIPIENT: recipient_hash(channel, recipient).hex()})
        )

    def operate(self, request: HttpRequest, id_: uuid.UUID, operation: str) -> HttpResponse:
        """Cancel or retry the one whose page was open."""
        if operation not in ("cancel", "retry"):
            raise PermissionDenied
        self._operate(request, operation, [id_])
        url = reverse("admin:delayed_queue_notifications_notification_change", args=[id_])
        return HttpResponseRedirect(url)

    def list_url(self, **query: str) -> str:
        url = reverse("admin:delayed_queue_notifications_notification_changelist")
        return f"{url}?{urlencode(query)}" if query else url

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

    @admin.display(description=_("id"))
    def id_column(self, row: Notification) -> SafeString:
        # The beginning is the time, the same for all of a minute: the end tells them apart.
        return format_html('<code title="{}">…{}</code>', row.id, str(row.id)[-12:])

    @admin.display(description=_("state"))
    def status_column(self, row: Notification) -> SafeString:
        return badge(row.status)

    @admin.display(description=_("channel"))
    def channel_column(self, row: Notification) -> SafeString:
        return format_html(
            '{} <span class="dq-quiet">{}</span>', row.get_channel_display(), row.priority
        )

    @admin.display(description=_("about"))
    def about_column(self, row: Notification) -> SafeString:
        template = f"{row.template} v{row.template_version}" if row.template else _("written out")
        return format_html('{} <span class="dq-quiet">{}</span>', template, row.category)

    @admin.display(description=_("attempts"))
    def attempts_column(self, row: Notification) -> str:
        return formats.number(row.attempts)

    @admin.display(description=_("outcome"))
    def provider_column(self, row: Notification) -> SafeString:
        words = [each for each in (row.provider, row.outcome, row.code_untold) if each]
        if not words:
            return formats.NOTHING
        first, *rest = words
        # An outcome is ours; what the provider said is on the page of the delivery.
        return format_html('{} <span class="dq-quiet">{}</span>', first, " · ".join(rest))

    @admin.display(description=_("accepted"))
    def age_column(self, row: Any) -> SafeString:
        return formats.moment(row.created_at, formats.relative(row.created_at, row.read_at))

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Leave out what is no id, and so was never on the page."""
        data = request.POST.copy()
        data.setlist(CHECKBOX, [str(each) for each in _ticked(request)])
        request.POST = data  # type: ignore[assignment]
        return super().response_action(request, queryset, *args, **kwargs)

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

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [name for _, options in self.fieldsets for name in options["fields"]]

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        obj = kwargs["obj"]
        context.update(
            title=_("Notification %(id)s") % {"id": obj.id},
            subtitle=None,
            may_cancel=obj.status == Status.ENQUEUED and may(request, "cancel_notification"),
            may_retry=obj.status == Status.FAILED and may(request, "retry_notification"),
        )
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description=_("state"))
    def state(self, row: Notification) -> SafeString:
        return badge(row.status)

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

    @admin.display(description=_("recipient"))
    def recipient_shown(self, row: Any) -> SafeString:
        return formats.key_label(row.recipient) if row.shows_texts else formats.quiet(HIDDEN)

    @admin.display(description=_("subject"))
    def subject_shown(self, row: Any) -> SafeString:
        return self._text(row, lambda: row.subject)

    @admin.display(description=_("text"))
    def body_shown(self, row: Any) -> SafeString:
        return self._text(row, lambda: row.body)

    @admin.display(description=_("HTML"))
    def html_shown(self, row: Any) -> SafeString:
        return self._text(row, lambda: row.html)

    def _text(self, row: Any, read: Callable[[], str]) -> SafeString:
        if not row.shows_texts:
            return formats.quiet(HIDDEN)
        text = read()
        return formats.block(text) if text else formats.NOTHING

    # Operations

    @admin.action(description=_("Cancel"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._operate(request, "cancel", _ticked(request))

    @admin.action(description=_("Retry those not sent"), permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._operate(request, "retry", _ticked(request), even_in_doubt=False)

    @admin.action(
        description=_("Retry, including those that may have been sent"), permissions=["retry"]
    )
    def retry_doubtful_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._operate(request, "retry", _ticked(request))

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return may(request, "cancel_notification")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return may(request, "retry_notification")

    def _operate(
        self,
        request: HttpRequest,
        operation: str,
        ids: list[uuid.UUID],
        *,
        even_in_doubt: bool = True,
    ) -> None:
        """Do it to each that is still in the state for it, with an entry in the admin's log."""
        if not may(request, f"{operation}_notification") or not self.has_view_permission(request):
            raise PermissionDenied
        again = partial(managing.retry, even_in_doubt=even_in_doubt)
        act = managing.cancel if operation == "cancel" else again
        done = [id_ for id_ in ids if self._act(request, act, operation, id_)]
        is_cancel = operation == "cancel"
        if done:
            past = _("Cancelled: %(number)s.") if is_cancel else _("Queued again: %(number)s.")
            self.message_user(request, past % {"number": len(done)}, messages.SUCCESS)
        if left := len(ids) - len(done):
            why = _WAITING if is_cancel else _FAILED if even_in_doubt else _NOT_SENT
            self.message_user(request, why % {"number": left}, messages.WARNING)

    @transaction.atomic
    def _act(
        self, request: HttpRequest, act: Callable[[uuid.UUID], bool], name: str, id_: uuid.UUID
    ) -> bool:
        if not act(id_):
            return False
        user: Any = request.user
        rows = [Notification(pk=id_)]
        LogEntry.objects.log_actions(user.pk, rows, CHANGE, f"{name} of {id_}", single_object=True)
        return True


def _ticked(request: HttpRequest) -> list[uuid.UUID]:
    found = map(as_id, request.POST.getlist(CHECKBOX))
    return [each for each in found if each is not None]
