"""Instants, durations, texts, payloads and charts as an operator reads them, escaped."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

from django.utils import dateformat
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayed_queue.admin.lists import MessageRow, RowState, state_of
from delayed_queue.codecs import codec_named, decode
from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.observe.overview import name_of
from delayed_queue.templatetags.delayed_queue_admin import counted as counted
from delayed_queue.templatetags.delayed_queue_admin import number as number

MAX_SHOWN: Final = 10_000
# The parameter by which the list of messages shows those of one lease.
LEASE: Final = "lease"
_UNITS: Final = (("y", 31_557_600), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_LABELS: Final = {
    RowState.SCHEDULED: gettext_lazy("scheduled"),
    RowState.DUE: gettext_lazy("due"),
    RowState.LEASED: gettext_lazy("leased"),
    RowState.EXPIRED: gettext_lazy("lease expired"),
}
_BREAK: Final = SafeString("<wbr>.")
NOTHING: Final = SafeString('<span class="dq-quiet">—</span>')
# A chart is inline SVG: lines over time, gaps where nobody measured, marks where something was. Its
# colours are classes of the style sheet, so that they follow the admin's theme; words are beside
# the drawing, not in it, where a phone would shrink them. It is as wide as there are points, and
# this high; the page stretches it.
_HEIGHT: Final = 100
_EMPTY: Final = SafeString("")
Values = Sequence[float | None]


def percent(share: float, places: int = 1) -> str:
    return _("%s%%") % number_format(share * 100, places, force_grouping=True)


def seconds(value: float) -> str:
    """Return a short time with the digits that matter, a long one in its two largest units."""
    if value < 1:
        return f"{number(round(value * 1000))} ms"
    return f"{number(value)} s" if value < 10 else human(timedelta(seconds=value))


def human(span: timedelta) -> str:
    """Return the length in its two largest units, as in ``3 d 4 h``, whatever the sign."""
    left = abs(int(span.total_seconds()))
    if left == 0:
        return _("under 1 s")
    parts: list[str] = []
    for name, size in _UNITS:
        count, left = divmod(left, size)
        if count:
            parts.append(f"{number(count)} {name}")
        elif parts:
            break
    return " ".join(parts[:2])


def per_second(rate: float) -> str:
    """Return a rate with the digits that matter."""
    return f"{number(rate)}/s"


def exact(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def dated(at: datetime, pattern: str = "D H:i") -> str:
    """Return the time in its own zone by a pattern of Django's, its days in the reader's words."""
    return dateformat.format(at, pattern)


def moment(at: datetime, words: str) -> SafeString:
    """Return the words, with the exact instant on hovering and for screen readers."""
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exact(at), words)


def relative(at: datetime, now: datetime) -> str:
    if at > now:
        return _("in %(span)s") % {"span": human(at - now)}
    return _("%(span)s ago") % {"span": human(now - at)}


def badge(state: RowState) -> SafeString:
    return format_html('<span class="dq-state dq-{}">{}</span>', state.value, _LABELS[state])


def waiting(message: MessageRow) -> SafeString:
    """Return the time left until the message falls due, or how late it is."""
    span = human(message.scheduled_at - message.read_at)
    words = {
        RowState.SCHEDULED: _("in %(span)s"),
        RowState.DUE: _("%(span)s late"),
        RowState.LEASED: _("%(span)s left"),
        RowState.EXPIRED: _("lapsed %(span)s ago"),
    }
    return moment(message.scheduled_at, words[state_of(message)] % {"span": span})


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


def shortened(text: str, most: int) -> str:
    words = printable(text)
    return words if len(words) <= most else f"{words[: most - 1]}…"


def block(text: str) -> SafeString:
    """Return the beginning of the text, preformatted."""
    if len(text) <= MAX_SHOWN:
        return format_html('<pre class="dq-block">{}</pre>', printable(text))
    note = _("The first %(shown)s of %(all)s characters:") % _sizes(text)
    return format_html('{}<pre class="dq-block">{}</pre>', quiet(note), printable(text[:MAX_SHOWN]))


def _sizes(text: str) -> dict[str, str]:
    return {"shown": number(MAX_SHOWN), "all": number(len(text))}


def error_block(text: str | None) -> SafeString:
    """Return the end of an error, where a traceback says what happened."""
    if not text:
        return NOTHING
    if len(text) <= MAX_SHOWN:
        return block(text)
    note = _("The last %(shown)s of %(all)s characters:") % _sizes(text)
    return format_html("{}{}", quiet(note), block(text[-MAX_SHOWN:]))


def headers_block(headers: Any) -> SafeString:
    if not headers:
        return NOTHING
    return block(json.dumps(headers, indent=2, ensure_ascii=False, sort_keys=True))


def dotted(path: str) -> SafeString:
    """Return a dotted path that may be broken before its dots, and nowhere in a word."""
    return format_html_join(_BREAK, "{}", ((each,) for each in path.split(".")))


def table(heads: Sequence[Any], lines: Iterable[Sequence[Any]]) -> SafeString:
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


def quiet(text: Any) -> SafeString:
    return format_html('<p class="dq-note">{}</p>', text)


def timeline(events: Sequence[tuple[datetime | None, Any]], now: datetime) -> SafeString:
    """Return what happened and what is to come, in order, with now in its place."""
    known = [(at, what) for at, what in events if at is not None]
    lines = sorted([*known, (now, None)], key=lambda event: event[0])
    items = format_html_join(
        "",
        '<li class="{}"><span class="dq-at">{}</span> {} <span class="dq-quiet">{}</span></li>',
        (
            ("dq-now", exact(at), _("now"), "")
            if what is None
            else ("dq-past" if at <= now else "dq-ahead", exact(at), what, relative(at, now))
            for at, what in lines
        ),
    )
    return format_html('<ol class="dq-timeline">{}</ol>', items)


# As much of a payload as is ever fetched: a column may hold a gigabyte.
MAX_READ: Final = 1_048_576
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PRETTY: Final = json.JSONEncoder(ensure_ascii=False, indent=2)


def show_payload(kind: str, head: bytes, size: int) -> SafeString:
    """Return the payload, given its first bytes (at most MAX_READ) and its whole size.

    Only the built-in codecs are used, by the name in the kind: a codec of the project's own may
    do anything with bytes that anyone may have written.
    """
    text, note = _readable(kind, head, is_whole=len(head) == size)
    shown = _("%(size)s bytes") % {"size": number(size)} + note
    if len(text) > MAX_SHOWN or len(head) < size:
        first = _("; the first %(shown)s characters are shown")
        shown += first % {"shown": number(min(len(text), MAX_SHOWN))}
    return format_html("{}{}", quiet(f"{shown}."), block(text[:MAX_SHOWN]))


def _readable(kind: str, head: bytes, *, is_whole: bool) -> tuple[str, str]:
    # What is sent to urls is the JSON that was added.
    if name_of(kind).codec not in {"json", "callback"}:
        return _as_text(head, is_whole=is_whole)
    if not is_whole:
        text, note = _as_text(head, is_whole=False)
        return text, note + _(", too large to be read as JSON here")
    try:
        return _pretty(decode(codec_named("json"), head)), _(" of JSON, indented")
    except (PayloadNotDecodable, RecursionError) as error:
        text, note = _as_text(head, is_whole=True)
        unreadable = _(", not readable as JSON (%(error)s)")
        return text, note + unreadable % {"error": error.__cause__ or error}


def _pretty(value: Any) -> str:
    """Return indented JSON, not much longer than is shown: nesting could make it gigabytes."""
    parts: list[str] = []
    length = 0
    for part in _PRETTY.iterencode(value):
        parts.append(part)
        length += len(part)
        if length > MAX_SHOWN:
            break
    return "".join(parts)


def _as_text(head: bytes, *, is_whole: bool) -> tuple[str, str]:
    try:
        # Not final when cut: the last character may have been cut in two.
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=is_whole)
    except UnicodeDecodeError:
        return _as_hex(head)
    if _CONTROL.search(text, 0, MAX_SHOWN):
        return _as_hex(head)
    return text, _(" of text")


def _as_hex(head: bytes) -> tuple[str, str]:
    # Two characters and a blank a byte; one byte more than is shown, to tell that there is more.
    return head[: MAX_SHOWN // 3 + 1].hex(" "), _(", shown in hexadecimal")


class Line(NamedTuple):
    """A line of a chart: its name, its class in the style sheet, and a value for each point."""

    name: str
    css: str
    values: Values


class Mark(NamedTuple):
    """What was at a point: a class in the style sheet, and words."""

    at: float
    css: str
    words: str


def sparkline(values: Values, css: str, words: str) -> SafeString:
    """Return a small chart of one line; the words are what it says to those who cannot see it."""
    return _svg(len(values), "dq-spark", words, [_gaps(values), _path(values, css, _top(values))])


def chart(lines: Sequence[Line], known: Values, marks: SafeString, words: str) -> SafeString:
    """Return a chart of lines on one scale from zero; grey where nothing is known."""
    top = max(map(_top, (each.values for each in lines)))
    parts = [
        _gaps(known),
        marks,
        *(_path(each.values, each.css, top) for each in lines),
    ]
    return _svg(len(known), "dq-chart", words, parts)


def drawn(marks: Iterable[Mark]) -> SafeString:
    """Return the marks of a chart, and of all others over the same time."""
    return format_html_join(
        "",
        '<path class="dq-mark {}" d="M{} -4v{}"><title>{}</title></path>',
        ((each.css, f"{each.at:.2f}", _HEIGHT + 8, each.words) for each in marks),
    )


def largest(lines: Iterable[Line]) -> float | None:
    return max((each for line in lines for each in line.values if each is not None), default=None)


def _svg(points: int, css: str, words: str, parts: Iterable[SafeString]) -> SafeString:
    return format_html(
        '<svg class="{}" viewBox="0 -4 {} {}" preserveAspectRatio="none" role="img">'
        "<title>{}</title>{}</svg>",
        css, max(points - 1, 1), _HEIGHT + 8, words, format_html_join("", "{}", zip(parts)),
    )  # fmt: skip


def _top(values: Values) -> float:
    return max((each for each in values if each is not None), default=0) or 1


def _path(values: Values, css: str, top: float) -> SafeString:
    drawn = " ".join(_steps(values, top))
    return format_html('<path class="dq-line {}" d="{}"/>', css, drawn) if drawn else _EMPTY


def _steps(values: Values, top: float) -> Iterator[str]:
    """Yield a stroke for each run of values; one alone is a dot."""
    for is_known, run in groupby(enumerate(values), key=lambda each: each[1] is not None):
        if is_known:
            dots = [f"{x} {_HEIGHT - _HEIGHT * (y or 0) / top:.1f}" for x, y in run]
            yield "M" + "L".join(dots) + ("h0" if len(dots) == 1 else "")


def _gaps(values: Values) -> SafeString:
    """Return grey where there is no value, to halfway to its neighbours."""
    return format_html_join(
        "", '<rect class="dq-gap" x="{}" y="-4" width="{}" height="{}"/>', _rects(values)
    )


def _rects(values: Values) -> Iterator[tuple[float, float, int]]:
    for is_known, run in groupby(enumerate(values), key=lambda each: each[1] is not None):
        places = [x for x, _ in run]
        if not is_known:
            left, right = max(places[0] - 0.5, 0), min(places[-1] + 0.5, len(values) - 1)
            yield left, right - left, _HEIGHT + 8
