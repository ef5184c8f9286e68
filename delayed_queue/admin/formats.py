"""Instants, durations and texts as an operator reads them, escaped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from delayed_queue.admin.rows import MessageRow, RowState, state_of
from delayed_queue.observe.overview import name_of

MAX_SHOWN: Final = 10_000
# The parameter by which the list of messages shows those of one lease.
LEASE: Final = "lease"
_UNITS: Final = (("y", 31_557_600), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_LABELS: Final = {
    RowState.SCHEDULED: "scheduled",
    RowState.DUE: "due",
    RowState.LEASED: "leased",
    RowState.EXPIRED: "lease expired",
}
_BREAK: Final = SafeString("<wbr>.")
NOTHING: Final = SafeString('<span class="dq-quiet">—</span>')


def human(span: timedelta) -> str:
    """Return the length in its two largest units, as in ``3 d 4 h``, whatever the sign."""
    left = abs(int(span.total_seconds()))
    if left == 0:
        return "under 1 s"
    parts: list[str] = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count:,} {name}")
        elif parts:
            break
    return " ".join(parts[:2])


def per_second(rate: float) -> str:
    """Return a rate with the digits that matter."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.2g}/s"


def exact(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def moment(at: datetime, words: str) -> SafeString:
    """Return the words, with the exact instant on hovering and for screen readers."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exact(at), words)


def relative(at: datetime, now: datetime) -> str:
    return f"in {human(at - now)}" if at > now else f"{human(now - at)} ago"


def spelled_out(at: datetime, now: datetime) -> SafeString:
    return format_html("{} <span class='dq-quiet'>({})</span>", exact(at), relative(at, now))


def badge(state: RowState) -> SafeString:
    return format_html('<span class="dq-state dq-{}">{}</span>', state.value, _LABELS[state])


def waiting(message: MessageRow) -> SafeString:
    """Return the time left until the message falls due, or how late it is."""
    span = human(message.scheduled_at - message.read_at)
    words = {
        RowState.SCHEDULED: f"in {span}",
        RowState.DUE: f"{span} late",
        RowState.LEASED: f"{span} left",
        RowState.EXPIRED: f"lapsed {span} ago",
    }
    return moment(message.scheduled_at, words[state_of(message)])


def kind_label(kind: str) -> SafeString:
    name = name_of(kind)
    if not name.codec:
        return format_html('<span title="{}">{}</span>', kind, name.queue)
    return format_html(
        '<span title="{}">{} <span class="dq-quiet">{}</span></span>', kind, name.queue, name.codec
    )


def key_label(key: str) -> SafeString:
    return format_html('<span class="dq-key">{}</span>', key)


def short_lease(lease_id: str | None) -> SafeString:
    if lease_id is None:
        return NOTHING
    query = urlencode({LEASE: lease_id})
    return format_html(
        '<a href="?{}"><code title="{}">{}</code></a>', query, lease_id, lease_id[:8]
    )


def printable(text: str) -> str:
    """Return the text as UTF-8 can carry it: a lone surrogate would break the whole page."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def block(text: str) -> SafeString:
    """Return the beginning of the text, preformatted."""
    if len(text) <= MAX_SHOWN:
        return format_html('<pre class="dq-block">{}</pre>', printable(text))
    note = f"The first {MAX_SHOWN:,} of {len(text):,} characters:"
    return format_html('{}<pre class="dq-block">{}</pre>', quiet(note), printable(text[:MAX_SHOWN]))


def error_block(text: str | None) -> SafeString:
    """Return the end of an error, where a traceback says what happened."""
    if not text:
        return NOTHING
    if len(text) <= MAX_SHOWN:
        return block(text)
    note = f"The last {MAX_SHOWN:,} of {len(text):,} characters:"
    return format_html("{}{}", quiet(note), block(text[-MAX_SHOWN:]))


def headers_block(headers: Any) -> SafeString:
    if not headers:
        return NOTHING
    return block(json.dumps(headers, indent=2, ensure_ascii=False, sort_keys=True))


def dotted(path: str) -> SafeString:
    """Return a dotted path that may be broken before its dots, and nowhere in a word."""
    return format_html_join(_BREAK, "{}", ((each,) for each in path.split(".")))


def table(heads: Sequence[str], lines: Iterable[Sequence[Any]]) -> SafeString:
    """Return a table whose cells have the names of their columns: a phone shows it as cards."""
    labels = [capfirst(each) for each in heads]
    head = format_html_join("", '<th scope="col">{}</th>', ((each,) for each in labels))
    rows = (
        (format_html_join("", '<td data-label="{}">{}</td>', zip(labels, line, strict=True)),)
        for line in lines
    )
    return format_html(
        '<div class="dq-overview"><table class="dq-table"><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody></table></div>",
        head, format_html_join("", "<tr>{}</tr>", rows),
    )  # fmt: skip


def quiet(text: str) -> SafeString:
    return format_html('<p class="dq-note">{}</p>', text)


def timeline(events: list[tuple[datetime | None, str]], now: datetime) -> SafeString:
    """Return what happened and what is to come, in order, with now in its place."""
    known = [(at, what) for at, what in events if at is not None]
    lines = sorted([*known, (now, "now")], key=lambda event: event[0])
    items = format_html_join(
        "",
        '<li class="{}"><span class="dq-at">{}</span> {} <span class="dq-quiet">{}</span></li>',
        (
            ("dq-now", exact(at), what, "")
            if what == "now"
            else ("dq-past" if at <= now else "dq-ahead", exact(at), what, relative(at, now))
            for at, what in lines
        ),
    )
    return format_html('<ol class="dq-timeline">{}</ol>', items)
