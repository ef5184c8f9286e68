"""The page of a queue: its history as charts, and its groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.base import QueueModelAdmin
from delayed_queue.admin.charts import Line, Mark, chart, drawn, largest
from delayed_queue.admin.filters import KIND, valid_kind
from delayed_queue.admin.formats import clock, dated, link, number, seconds
from delayed_queue.admin.groups import groups_of
from delayed_queue.admin.limits import CHANGES, group_target
from delayed_queue.admin.queues import PAUSE_QUEUE
from delayed_queue.admin.schedule_preview import rule_of
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.messages import EPOCH
from delayed_queue.models import Limit, QueueOverview, Schedule
from delayed_queue.observe.history import MINUTE, History, Step, quantile, read, window_of
from delayed_queue.observe.overview import name_of
from delayed_queue.observe.store import Window

RANGE: Final = "range"
VIEW_LETTERS: Final = "delayed_queue.view_deadletter"


# The time to look back over, and the width of a point.
RANGES: Final = {
    "1h": (timedelta(hours=1), timedelta(minutes=1)),
    "6h": (timedelta(hours=6), timedelta(minutes=5)),
    "24h": (timedelta(hours=24), timedelta(minutes=15)),
    "7d": (timedelta(days=7), timedelta(hours=2)),
}
# Maximum runs drawn of a schedule; more would fill the chart.
_MAX_TICKS: Final = 60
_MAX_SCHEDULES: Final = 20
# The value of a step: of a queue's history, or of an app's own.
Value = Callable[[Any], float | None]


def _percentile(histogram: str, share: float) -> Value:
    def of(step: Step) -> float | None:
        found = quantile(getattr(step, histogram), share)
        return None if found is None else found / 1000

    return of


def a_minute(count: str) -> Value:
    """Return a rate; unknown for steps without samples."""

    def of(step: Step) -> float | None:
        found = getattr(step, count)
        return found / step.width if found or (found == 0 and step.is_sampled) else None

    return of


class Figure(NamedTuple):
    """A chart of the page: its lines by name, class and value, and how values are written."""

    title: Any
    lines: tuple[tuple[Any, str, Value], ...]
    words: Callable[[float], str] = number
    note: Any = ""

    def write(self, value: float | None) -> str:
        return "—" if value is None else self.words(value)


_DEAD: Final = Figure(_("Dead letters"), ((_("dead"), "dq-of-alarm", lambda step: step.dead),))
FIGURES: Final = (
    Figure(_("Due and leased"), (
        (_("due"), "dq-of-due", lambda step: step.due),
        (_("leased"), "dq-of-leased", lambda step: step.leased),
    )),
    Figure(_("In and out, a minute"), (
        (_("came in"), "dq-of-leased", a_minute("came_in")),
        (_("done"), "dq-of-due", a_minute("done")),
    ), note=_("Arrivals are derived from departures and growth, below 10,000 messages.")),
    Figure(_("Lateness"), (
        (_("most overdue"), "dq-of-alarm", lambda step: step.late),
        (_("p99"), "dq-of-expired", _percentile("lateness", 0.99)),
        (_("p50"), "dq-of-leased", _percentile("lateness", 0.5)),
    ), seconds),
    Figure(_("Run time"), (
        (_("p99"), "dq-of-expired", _percentile("runs", 0.99)),
        (_("p50"), "dq-of-leased", _percentile("runs", 0.5)),
    ), seconds),
    Figure(_("Failures, a minute"), (
        (_("retried"), "dq-of-expired", a_minute("failed")),
        (_("dead-lettered"), "dq-of-alarm", a_minute("died")),
        (_("expired"), "dq-of-leased", a_minute("expired")),
    )),
    _DEAD,
    Figure(_("Scheduled"), ((_("scheduled"), "dq-of-leased", lambda step: step.scheduled),)),
)  # fmt: skip


def history_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    kind, chosen = valid_kind(request.GET.get(KIND, "")), request.GET.get(RANGE, "1h")
    if request.method == "POST":
        rows = Limit.objects.using(model_admin.writer(request)).filter(kind=kind)
        above = link(model_admin.url("delayed_queue_queues"), _("Queues"))
        target = partial(group_target, kind)
        return model_admin.press(request, CHANGES, rows, target, above=above)
    if chosen not in RANGES:
        raise BadRequest("There is no such range.")
    using = model_admin.get_queryset(request).db
    may_change = model_admin.may(request, PAUSE_QUEUE)
    context = {
        "title": gettext("History of %(queue)s") % {"queue": name_of(kind).queue},
        "opts": QueueOverview._meta,
        "kind": kind,
        "queue": name_of(kind),
        "query": urlencode({KIND: kind}),
        "ranges": [(each, urlencode({KIND: kind, RANGE: each}), each == chosen) for each in RANGES],
        "zone": timezone.get_current_timezone_name(),
        "groups": groups_of(kind, using, may_change=may_change),
        "changes": CHANGES if may_change else (),
        **_charts(kind, chosen, using, has_dead=model_admin.may(request, VIEW_LETTERS)),
    }
    return model_admin.page(request, "delayed_queue/queue_history", context)


def _charts(kind: str, chosen: str, using: str, *, has_dead: bool) -> dict[str, Any]:
    found = read(kind, window_of(*RANGES[chosen], using=using), using=using)
    figures = [each for each in FIGURES if has_dead or each is not _DEAD]
    marks = [*_deploys(found), *_ticks(kind, found, using)]
    drawn_marks = drawn(marks)
    return {
        "is_sampled": any(each.is_sampled for each in found.steps),
        "gap": _gap(found),
        "figures": [figure_of(each, found.window, found.steps, drawn_marks) for each in figures],
        "marks": marks,
    }


def minute_at(minute: float) -> datetime:
    return EPOCH + minute * MINUTE


def figure_of(
    figure: Figure, window: Window, steps: Sequence[Any], marks: SafeString
) -> dict[str, Any]:
    """Return a chart of the steps, which have ``minute`` and ``is_sampled``."""
    lines = [Line(name, css, list(map(of, steps))) for name, css, of in figure.lines]
    top, tips = largest(lines), tips_of(steps, lines, figure.write)
    return {
        "title": figure.title,
        "note": figure.note,
        "top": "" if top is None else figure.words(top),
        "legend": [(each.name, each.css, _last(each, figure)) for each in lines],
        "svg": chart(lines, tips, marks, _said(figure, lines)),
        "times": times_of(window.since, window.until),
    }


def times_of(since: int, until: int) -> list[SafeString]:
    """Return the times below a chart."""
    pattern = "D d M H:i" if until - since > 1440 else "H:i"
    return [clock(minute_at(each), pattern) for each in (since, (since + until) / 2, until)]


def tips_of(steps: Sequence[Any], lines: Sequence[Line], write: Callable[[Any], str]) -> list[str]:
    """Return the time and the values of each step; empty where no worker took samples."""
    return [
        f"{dated(minute_at(step.minute))}: "
        + ", ".join(f"{line.name} {write(line.values[number])}" for line in lines)
        if step.is_sampled
        else ""
        for number, step in enumerate(steps)
    ]


def _last(line: Line, figure: Figure) -> str:
    return figure.write(next((each for each in reversed(line.values) if each is not None), None))


def _said(figure: Figure, lines: Sequence[Line]) -> str:
    """Describe the chart in words."""
    parts = []
    for line in lines:
        words, top = gettext("unknown"), largest([line])
        if top is not None:
            facts = {"most": figure.words(top), "last": _last(line, figure)}
            words = gettext("%(most)s at most, %(last)s last") % facts
        parts.append(f"{line.name} {words}")
    return f"{figure.title}: {'; '.join(parts)}."


def _deploys(found: History) -> list[Mark]:
    window = found.window
    return [
        Mark(_place(each.minute, window), "dq-of-deploy",
             dated(minute_at(each.minute), "D H:i ")
             + gettext("workers of version %(version)s") % {"version": each.version})
        for each in found.deploys
    ]  # fmt: skip


def _ticks(kind: str, found: History, using: str) -> Iterator[Mark]:
    """Yield the runs of the queue's present schedules, except of frequent ones."""
    window = found.window
    rows = Schedule.objects.using(using).filter(kind=kind, is_enabled=True).exclude(type="")
    for row in rows.order_by("key_prefix")[:_MAX_SCHEDULES]:
        try:
            rule = rule_of(row)
        except InvalidConfiguration:
            continue
        times = rule.times_between(minute_at(window.since), minute_at(window.until), _MAX_TICKS + 1)
        for at in times if len(times) <= _MAX_TICKS else ():
            place = _place((at - EPOCH) / MINUTE, window)
            yield Mark(place, "dq-of-tick", f"{dated(at)} {row.key_prefix}")


def _place(minute: float, window: Window) -> float:
    """Return the position of a minute between the points of the first and the last step."""
    steps = (window.until - window.since) // window.step
    return min((minute - window.since) / window.step, steps - 1)


def _gap(found: History) -> SafeString | str:
    """Return the time of the last sample; empty if workers still take samples."""
    last = next((each.minute for each in reversed(found.steps) if each.is_sampled), None)
    if last is None or found.window.until - last <= max(2 * found.window.step, 3):
        return ""
    return clock(minute_at(last), "D Y-m-d H:i T")
