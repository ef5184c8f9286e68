"""Instants, durations, texts and payloads as an operator reads them, escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from django.contrib import admin
from django.utils import dateformat
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.timezone import localtime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayed_queue.admin.rows import RowState, state_of
from delayed_queue.codecs import codec_named, decode
from delayed_queue.exceptions import PayloadNotDecodable
from delayed_queue.observe.overview import name_of
from delayed_queue.templatetags.delayed_queue_admin import codec_of as codec_of
from delayed_queue.templatetags.delayed_queue_admin import counted as counted
from delayed_queue.templatetags.delayed_queue_admin import number as number

MAX_SHOWN: Final = 10_000
_UNITS: Final = (("y", 31_557_600), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_LABELS: Final = {
    RowState.SCHEDULED: gettext_lazy("scheduled"),
    RowState.DUE: gettext_lazy("due"),
    RowState.LEASED: gettext_lazy("leased"),
    RowState.EXPIRED: gettext_lazy("lease expired"),
}
_BREAK: Final = SafeString("<wbr>.")
NOTHING: Final = SafeString('<span class="dq-quiet">—</span>')


def percent(share: float, places: int = 1) -> str:
    return _("%s%%") % number_format(share * 100, places, force_grouping=True)


def seconds(value: float) -> str:
    """Return a short time with its significant digits, a long one in its two largest units."""
    if value < 1:
        return f"{number(round(value * 1000))} ms"
    return f"{number(value)} s" if value < 10 else human(timedelta(seconds=value))


def seconds_between(start: datetime | None, end: datetime) -> str:
    """Return the duration; a dash if the start is unknown."""
    return "—" if start is None else seconds(max((end - start).total_seconds(), 0.0))


def human(span: timedelta) -> str:
    """Return the length in its two largest units, as in ``3 d 4 h``, without the sign."""
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
    """Return a rate with its significant digits."""
    return f"{number(rate)}/s"


def utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def dated(at: datetime, pattern: str = "D H:i") -> str:
    """Return the time in the project's zone, by a pattern of Django's."""
    return dateformat.format(localtime(at), pattern)


def moment(at: datetime, words: Any) -> SafeString:
    """Return the words, with the instant on hovering: in the project's zone and in UTC."""
    local = localtime(at)
    here = f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()} = " if local.utcoffset() else ""
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', at.isoformat(), f"{here}{utc(at)}", words
    )


def exact(at: datetime) -> SafeString:
    """Return the instant in the project's zone, with UTC on hovering."""
    local = localtime(at)
    millisecond = f"{local:%Y-%m-%d %H:%M:%S}.{local.microsecond // 1000:03d}"
    return moment(at, f"{millisecond} {local.tzname()}")


def clock(at: datetime, pattern: str = "D H:i") -> SafeString:
    """Return ``dated``, with the instant on hovering."""
    return moment(at, dated(at, pattern))


def relative(at: datetime, now: datetime) -> str:
    if at > now:
        return _("in %(span)s") % {"span": human(at - now)}
    return _("%(span)s ago") % {"span": human(now - at)}


def since(at: datetime | None, now: datetime) -> SafeString:
    """Return how long ago or ahead the time is; a dash for none."""
    return NOTHING if at is None else moment(at, relative(at, now))


def state(look: str, words: Any) -> SafeString:
    """Return a state as a coloured label; ``look`` names its class in the style sheet."""
    return format_html('<span class="dq-state dq-{}">{}</span>', look, words)


def badge(found: RowState) -> SafeString:
    return state(found.value, _LABELS[found])


def alarm(count: int, shown: str) -> SafeString:
    """Return a number, in red unless it is 0."""
    look = "dq-alarm" if count else "dq-quiet"
    return format_html('<span class="{}">{}</span>', look, shown)


def code(text: str) -> SafeString:
    return format_html("<code>{}</code>", text) if text else NOTHING


def link(url: str, words: Any) -> SafeString:
    return format_html('<a href="{}">{}</a>', url, words)


def column(words: Any, show: str | Callable[[Any], Any]) -> Any:
    """Return a column of a list, or a field of a page: an attribute, or what ``show`` returns."""
    read = attrgetter(show) if isinstance(show, str) else show

    @admin.display(description=words)
    def shown(self: Any, row: Any) -> Any:
        found = read(row)
        return NOTHING if found in (None, "") else found

    return shown


def time_column(words: Any, name: str) -> Any:
    """Return a column of how long ago or ahead an attribute is."""
    return column(words, lambda row: since(getattr(row, name), row.read_at))


def count_column(words: Any, name: str) -> Any:
    """Return a column of a number; a dash for none."""

    def show(row: Any) -> str | None:
        found = getattr(row, name)
        return None if found is None else number(found)

    return column(words, show)


def waiting(message: Any) -> SafeString:
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
    codec = format_html(' <span class="dq-quiet">{}</span>', codec_of(name))
    return format_html('<span title="{}">{}{}</span>', kind, name.queue, codec)


def key_label(key: str) -> SafeString:
    return format_html('<span class="dq-key">{}</span>', key)


def printable(text: str) -> str:
    """Escape lone surrogates, which would break the whole page."""
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
    """Return the end of an error, which is the useful part of a traceback."""
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
    """Return a dotted path with line breaks allowed before its dots only."""
    return format_html_join(_BREAK, "{}", ((each,) for each in path.split(".")))


def table(heads: Sequence[Any], lines: Iterable[Sequence[Any]]) -> SafeString:
    """Return a table whose cells are labelled with their columns: a phone shows cards."""
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
    """Return past and future events in order, with now in its place."""
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


# Maximum bytes fetched of a payload; a column may hold a gigabyte.
MAX_READ: Final = 1_048_576
_CONTROL: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_PRETTY: Final = json.JSONEncoder(ensure_ascii=False, indent=2)


def show_payload(kind: str, head: bytes, size: int) -> SafeString:
    """Return the payload, given its first bytes (at most MAX_READ) and its whole size.

    Uses only built-in codecs, by the name in the kind: a codec of the project is not safe for bytes
    from any writer.
    """
    text, note = _as_text(head), ""
    # Callbacks have JSON payloads, too.
    if name_of(kind).codec in {"json", "callback"} and len(head) == size:
        try:
            text, note = _pretty(decode(codec_named("json"), head)), _(" of JSON, indented")
        except (PayloadNotDecodable, RecursionError) as error:
            unreadable = _(", not readable as JSON (%(error)s)")
            note = unreadable % {"error": error.__cause__ or error}
    shown = _("%(size)s bytes") % {"size": number(size)} + note
    if len(text) > MAX_SHOWN or len(head) < size:
        first = _("; the first %(shown)s characters are shown")
        shown += first % {"shown": number(min(len(text), MAX_SHOWN))}
    return format_html("{}{}", quiet(f"{shown}."), block(text[:MAX_SHOWN]))


def _pretty(value: Any) -> str:
    """Return the beginning of indented JSON: with deep nesting, all of it could be gigabytes."""
    parts: list[str] = []
    length = 0
    for part in _PRETTY.iterencode(value):
        parts.append(part)
        length += len(part)
        if length > MAX_SHOWN:
            break
    return "".join(parts)


def _as_text(head: bytes) -> str:
    """Return more than is shown of the bytes as text, with escapes for those that are none."""
    text = head[: 4 * MAX_SHOWN + 4].decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
