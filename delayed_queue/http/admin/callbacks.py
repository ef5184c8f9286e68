"""The callbacks of one job as a table, and how a callback ended in words."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import router
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.http.jobs.kinds import Way, parse_kind
from delayed_queue.http.models import CallbackAttempt
from delayed_queue.messages import MILLISECOND

MOST_SHOWN: Final = 50


def result_of(row: CallbackAttempt) -> SafeString:
    """Return the status or what went wrong, and whether the receiver may have acted."""
    if not row.failure:
        return format_html('<span class="dq-state dq-due">{}</span>', row.status)
    words = f"{row.failure} {row.status}" if row.status else row.failure
    doubt = " may have arrived" if row.is_ambiguous else ""
    return format_html(
        '<span class="dq-state dq-alarm">{}</span><span class="dq-quiet">{}</span>', words, doubt
    )


def took(row: CallbackAttempt) -> str:
    span = row.duration * MILLISECOND
    return f"{row.duration} ms" if span < timedelta(seconds=10) else formats.human(span)


def attempts_of_job(kind: str, key: str, request: HttpRequest, site: str) -> SafeString:
    """Return the last callbacks of a job as a table; empty for what is not called."""
    place = parse_kind(kind)
    if place is None or place.way is not Way.CALLBACK:
        return SafeString("")
    if not request.user.has_perm("delayed_queue_http.view_callbackattempt"):
        return formats.quiet(
            "Hidden: needs the permission delayed_queue_http.view_callbackattempt."
        )
    using = router.db_for_read(CallbackAttempt)
    found = CallbackAttempt.objects.using(using).filter(key=key, topic=place.topic)
    rows = list(found.order_by("-started_at")[:MOST_SHOWN])
    return _table(rows, site) if rows else formats.quiet("None yet.")


def _table(rows: Sequence[CallbackAttempt], site: str) -> SafeString:
    heads = ("attempt", "began", "took", "result", "address")
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
