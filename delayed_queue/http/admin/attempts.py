"""The callbacks that were made: as a list, as the timeline of one job, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.lists import Keyset
from delayed_queue.http.callbacks.calls import Failure
from delayed_queue.http.jobs.kinds import Way, parse_kind
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.messages import MILLISECOND

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

MOST_SHOWN: Final = 50
# The words that are stored of a failure, as an operator reads them.
_FAILURES: Final[dict[str, Any]] = {
    Failure.BLOCKED: _("blocked"), Failure.DNS: _("name not found"),
    Failure.REFUSED: _("connection refused"), Failure.UNREACHABLE: _("unreachable"),
    Failure.CONNECT_TIMEOUT: _("no connection in time"), Failure.TLS: _("TLS"),
    Failure.TIMEOUT: _("no answer in time"), Failure.RESET: _("connection lost"),
    Failure.PROTOCOL: _("not HTTP"), Failure.TOO_LARGE: _("answer too large"),
    Failure.STATUS: _("status"), Failure.LOCAL: _("failed here"),
}  # fmt: skip


def result_of(row: CallbackAttempt) -> SafeString:
    """Return the status or what went wrong, and whether the receiver may have acted."""
    if not row.failure:
        return format_html('<span class="dq-state dq-due">{}</span>', row.status)
    # A worker of a later release may know another.
    failure = _FAILURES.get(row.failure, row.failure)
    words = f"{failure} {row.status}" if row.status else failure
    doubt = _("may have arrived") if row.is_ambiguous else ""
    return format_html(
        '<span class="dq-state dq-alarm" title="{}">{}</span> <span class="dq-quiet">{}</span>',
        row.failure,
        words,
        doubt,
    )


def took(row: CallbackAttempt) -> str:
    span = row.duration * MILLISECOND
    return (
        f"{formats.number(row.duration)} ms"
        if span < timedelta(seconds=10)
        else formats.human(span)
    )


def attempts_of_job(kind: str, key: str, request: HttpRequest, site: str) -> SafeString:
    """Return the last callbacks of a job as a table; empty for what is not called."""
    place = parse_kind(kind)
    if place is None or place.way is not Way.CALLBACK:
        return SafeString("")
    if not request.user.has_perm("delayed_queue_http.view_callbackattempt"):
        return formats.quiet(
            _("Hidden: needs the permission delayed_queue_http.view_callbackattempt.")
        )
    using = router.db_for_read(CallbackAttempt)
    found = CallbackAttempt.objects.using(using).filter(key=key, topic=place.topic)
    rows = list(found.order_by("-started_at")[:MOST_SHOWN])
    return _table(rows, site) if rows else formats.quiet(_("None yet."))


def _table(rows: Sequence[CallbackAttempt], site: str) -> SafeString:
    heads = (_("attempt"), _("began"), _("took"), _("result"), _("address"))
    return formats.table(heads, (_cells(each, site) for each in rows))


def _cells(row: CallbackAttempt, site: str) -> tuple[Any, ...]:
    name = "admin:delayed_queue_http_callbackattempt_change"
    url = reverse(name, args=[row.pk], current_app=site)
    return (
        format_html('<a href="{}">{}</a>', url, row.attempt),
        formats.exact(row.started_at),
        took(row),
        result_of(row),
        row.address,
    )


_OF_ONE_KEY: Final = Keyset(descending=True, hides_index=True)
_NEWEST_FIRST: Final = Keyset(descending=True)
_TOPIC: Final = "topic"


class TopicFilter(SimpleListFilter):
    """One topic, named in the link that leads here."""

    title = _("topic")
    parameter_name = _TOPIC

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, str]]:
        # A list of all could be long: the topic's own page leads here.
        chosen = request.GET.get(_TOPIC)
        return [(chosen, chosen)] if chosen else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        topic = self.value()
        return queryset.filter(topic=topic) if topic else queryset


@admin.register(CallbackAttempt)
class CallbackAttemptAdmin(RecordAdmin):
    """The latest first; found by the id of a job."""

    name_field = "key"
    list_filter = (TopicFilter,)
    search_fields = ("=key",)
    search_help_text = _("The whole id of a job; in every topic.")
    list_display = (
        "key_column", "topic_column", "attempt_column", "result_column", "duration_column",
        "address_column", "at_column",
    )  # fmt: skip
    readonly_fields = (
        "result_column", "detail_column", "topic_column", "job_column", "attempt_column",
        "webhook_column", "url_column", "address_column", "endpoint_column", "at_column",
        "duration_column", "excerpt_column",
    )  # fmt: skip

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return _OF_ONE_KEY if request.GET.get("q") else _NEWEST_FIRST

    @admin.display(description=_("job"))
    def key_column(self, row: CallbackAttempt) -> SafeString:
        return formats.key_label(row.key)

    @admin.display(description=_("job"))
    def job_column(self, row: CallbackAttempt) -> SafeString:
        url = reverse(
            "admin:delayed_queue_http_callbackattempt_changelist", current_app=self.admin_site.name
        )
        query = urlencode({"q": row.key})
        return format_html('{} · <a href="{}?{}">{}</a>', row.key, url, query, _("all attempts"))

    @admin.display(description=_("topic"))
    def topic_column(self, row: CallbackAttempt) -> str:
        return row.topic

    @admin.display(description=_("attempt"))
    def attempt_column(self, row: CallbackAttempt) -> int:
        return row.attempt

    @admin.display(description=_("result"))
    def result_column(self, row: CallbackAttempt) -> SafeString:
        return result_of(row)

    @admin.display(description=_("why"))
    def detail_column(self, row: CallbackAttempt) -> str | SafeString:
        return formats.printable(row.detail) if row.detail else formats.NOTHING

    @admin.display(description=_("took"))
    def duration_column(self, row: CallbackAttempt) -> str:
        return took(row)

    @admin.display(description=_("url"))
    def url_column(self, row: CallbackAttempt) -> SafeString:
        return format_html("<code>{}</code>", row.url) if row.url else formats.NOTHING

    @admin.display(description=_("address"))
    def address_column(self, row: CallbackAttempt) -> SafeString:
        return format_html("<code>{}</code>", row.address) if row.address else formats.NOTHING

    @admin.display(description=_("endpoint"))
    def endpoint_column(self, row: CallbackAttempt) -> SafeString:
        if row.endpoint_id is None:
            return formats.NOTHING
        name = "admin:delayed_queue_http_endpoint_change"
        url = reverse(name, args=[row.endpoint_id], current_app=self.admin_site.name)
        return format_html('<a href="{}">{} {}</a>', url, _("endpoint"), row.endpoint_id)

    @admin.display(description=_("webhook-id"))
    def webhook_column(self, row: CallbackAttempt) -> SafeString:
        return format_html("<code>{}</code>", row.webhook_id)

    @admin.display(description=_("began"))
    def at_column(self, row: Any) -> SafeString:
        return formats.moment(row.started_at, formats.relative(row.started_at, row.read_at))

    @admin.display(description=_("answer"))
    def excerpt_column(self, row: CallbackAttempt) -> SafeString:
        return formats.block(row.excerpt) if row.excerpt else formats.NOTHING
