"""The callbacks that were made: as a list, as the timeline of one job, and how they ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import admin
from django.db import router
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.filters import LinkedFilter
from delayed_queue.admin.formats import column, time_column
from delayed_queue.admin.lists import NEWEST_FIRST, Keyset
from delayed_queue.http.callbacks.calls import Failure
from delayed_queue.http.jobs.kinds import Way, parse_kind
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.messages import MILLISECOND

MOST_SHOWN: Final = 50
# Stored failures in an operator's words.
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
        return formats.state("due", row.status)
    # A worker of a later release may store another failure.
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
    """Return the last callbacks of a job as a table; empty for jobs without a url."""
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
    if not rows:
        return formats.quiet(_("None yet."))
    heads = (_("attempt"), _("began"), _("took"), _("result"), _("address"))
    return formats.table(heads, (_cells(each, site) for each in rows))


def _cells(row: CallbackAttempt, site: str) -> tuple[Any, ...]:
    name = "admin:delayed_queue_http_callbackattempt_change"
    url = reverse(name, args=[row.pk], current_app=site)
    return (
        formats.link(url, row.attempt),
        formats.exact(row.started_at),
        took(row),
        result_of(row),
        row.address,
    )


_OF_ONE_KEY: Final = Keyset(descending=True, hides_index=True)


class TopicFilter(LinkedFilter):
    """By topic; the topic's own page leads here."""

    title = _("topic")
    parameter_name = column = "topic"


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
        return _OF_ONE_KEY if request.GET.get("q") else NEWEST_FIRST

    key_column = column(_("job"), lambda row: formats.key_label(row.key))
    topic_column = column(_("topic"), "topic")
    attempt_column = column(_("attempt"), "attempt")
    result_column = column(_("result"), result_of)
    detail_column = column(_("why"), lambda row: formats.printable(row.detail))
    duration_column = column(_("took"), took)
    url_column = column(_("url"), lambda row: formats.code(row.url))
    address_column = column(_("address"), lambda row: formats.code(row.address))
    webhook_column = column(_("webhook-id"), lambda row: formats.code(row.webhook_id))
    at_column = time_column(_("began"), "started_at")
    excerpt_column = column(_("answer"), lambda row: row.excerpt and formats.block(row.excerpt))

    @admin.display(description=_("job"))
    def job_column(self, row: CallbackAttempt) -> SafeString:
        url = self.list_url(q=row.key)
        return format_html("{} · {}", row.key, formats.link(url, _("all attempts")))

    @admin.display(description=_("endpoint"))
    def endpoint_column(self, row: CallbackAttempt) -> SafeString:
        if row.endpoint_id is None:
            return formats.NOTHING
        url = self.url("delayed_queue_http_endpoint_change", row.endpoint_id)
        return formats.link(url, f"{_('endpoint')} {row.endpoint_id}")
