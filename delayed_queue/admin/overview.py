"""The queues at a glance, and pausing one: asked first and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib.admin.models import CHANGE
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from delayed_queue.admin.filters import KIND
from delayed_queue.admin.formats import (
    Values,
    counted,
    dotted,
    human,
    number,
    per_second,
    sparkline,
)
from delayed_queue.admin.lists import DatabaseClock
from delayed_queue.admin.operations import (
    QUEUES,
    Call,
    Entry,
    Operation,
    Report,
    lock,
    parse_ids,
    record,
    wake,
)
from delayed_queue.codecs import check_kind
from delayed_queue.conf import get_settings
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.handlers import storable
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Limit, LimitManager, QueueOverview, Worker
from delayed_queue.observe.history import MINUTE, Step, trends
from delayed_queue.observe.overview import (
    MAX_KINDS,
    Count,
    KindName,
    QueueDepth,
    estimated_depths,
    find_kinds,
    handler_of,
    name_of,
)
from delayed_queue.observe.snapshots import OLD, Snapshot, oldest_snapshot
from delayed_queue.worker.heartbeat import ALIVE
from delayed_queue.worker.store import ThroughputRow

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

_CONFIRMED: Final = "confirmed"


class PauseForm(forms.Form):
    """The reason for a pause; shown beside the queue for as long as it is paused."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), max_length=500, required=False,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text=gettext_lazy("Shown to your colleagues beside the queue."),
    )  # fmt: skip


class Switch(Operation):
    """An operation on one queue of the overview."""

    permission = "delayed_queue.pause_queue"

    def name_of_target(self, call: Call) -> str:
        """Return the kind of the queue that is meant; empty when there is none any more."""
        raise NotImplementedError


class Pause(Switch):
    """The token is the queue's kind."""

    name = "pause"
    label = gettext_lazy("Pause")
    help = gettext_lazy("Deliver no message of this queue until it is resumed.")
    warning = gettext_lazy(
        "No process gets a message of this queue until it is resumed. Takes effect "
        "at once. Offers are still accepted, and messages in flight are finished."
    )
    form_class = PauseForm

    def name_of_target(self, call: Call) -> str:
        return call.tokens[0]

    def run(self, call: Call) -> Report:
        report = Report(gettext_lazy("Paused"), QUEUES)
        kind, reason = call.tokens[0], storable(call.options.get("reason", ""))
        with call.transaction():
            by = call.user.get_username()
            if _pauses().pause(kind, reason=reason, by=by, using=call.using):
                report.changed.append(name_of(kind).queue)
                row = call.queryset.using(call.using).get(kind=kind)
                record(call, CHANGE, [Entry(row, _audit("Paused", kind, reason))])
            else:
                report.leave(_("paused already"), name_of(kind).queue)
        return report


class Resume(Switch):
    """The token is the pause that was seen: a later one has its own reason, and stays."""

    name = "resume"
    label = gettext_lazy("Resume")
    help = gettext_lazy("Deliver messages of this queue again.")
    warning = gettext_lazy(
        "Its messages are delivered again. Those that fell due meanwhile are delivered at once."
    )

    def name_of_target(self, call: Call) -> str:
        rows = call.queryset.filter(id__in=parse_ids(call.tokens))
        return next(iter(rows.values_list("kind", flat=True)), "")

    def run(self, call: Call) -> Report:
        report = Report(gettext_lazy("Resumed"), QUEUES)
        with call.transaction():
            for row in lock(call, parse_ids(call.tokens), report):
                _pauses().resume(row.kind, using=call.using)
                report.changed.append(name_of(row.kind).queue)
                record(call, CHANGE, [Entry(row, _audit("Resumed", row.kind, ""))])
                wake({row.kind}, call.using)
        return report


SWITCHES: Final[tuple[Switch, ...]] = (Pause(), Resume())


def paused_rows(model_admin: QueueModelAdmin, request: HttpRequest) -> QuerySet[Any]:
    """Return the paused queues of the admin's database, with the instant of reading."""
    using = model_admin.get_queryset(request).db
    rows = Limit.objects.paused(using).order_by("kind")
    return rows.annotate(read_at=DatabaseClock(), key=F("kind"))


def switch_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    """Pause or resume what was posted, after a page that asks."""
    switch = next((each for each in SWITCHES if each.name in request.POST), None)
    if switch is None:
        raise BadRequest("The action must be pause or resume.")
    if not model_admin.may(request, switch):
        raise PermissionDenied
    is_confirmed = _CONFIRMED in request.POST
    form = switch.form(request.POST if is_confirmed else None, str(request.user))
    options = form.cleaned_data if form.is_valid() else {}
    call = Call(_written(model_admin, request), [_target(switch, request)], request.user, options)
    if not form.is_valid() and switch.name_of_target(call):
        return _confirmation(model_admin, request, switch, call, form)
    model_admin.carry_out(request, switch, call)
    return HttpResponseRedirect(request.path)


def _target(switch: Switch, request: HttpRequest) -> str:
    target = request.POST[switch.name]
    try:
        return check_kind(target)
    except InvalidMessage as error:
        raise BadRequest(str(error)) from error


def _written(model_admin: QueueModelAdmin, request: HttpRequest) -> QuerySet[Any]:
    using = model_admin.get_queryset(request).select_for_update().db
    return paused_rows(model_admin, request).using(using)


def _confirmation(
    model_admin: QueueModelAdmin,
    request: HttpRequest,
    switch: Switch,
    call: Call,
    form: forms.Form,
) -> HttpResponse:
    kind = switch.name_of_target(call)
    row = call.queryset.filter(kind=kind).first()
    name: KindName = name_of(kind)
    shown = {
        "title": f"{switch.label} {name.queue}?",
        "button": f"{switch.label} {name.queue}",
        "target": call.tokens[0],
        "queue": name,
        "pause": row,
        "paused_for": "" if row is None else human(row.read_at - row.paused_at),
        "back": request.path,
    }
    return asked(model_admin, request, switch, form, shown)


def asked(
    model_admin: QueueModelAdmin,
    request: HttpRequest,
    switch: Operation,
    form: forms.Form,
    shown: dict[str, Any],
) -> HttpResponse:
    """Return the page that asks before something is done to a queue, or to a group of it."""
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "switch": switch,
        "form": form,
        **shown,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/delayed_queue/confirm_switch.html", context)


def _pauses() -> LimitManager[Limit]:
    return Limit.objects


def _audit(past: str, kind: str, reason: str) -> str:
    return f"{past}. Queue {kind}." + (f" Reason: {reason}" if reason else "")


_LATE: Final = timedelta(minutes=1)
_HOLDERS: Final = {
    "session": gettext_lazy("session"),
    "prepared transaction": gettext_lazy("prepared transaction"),
    "replication slot": gettext_lazy("replication slot"),
    "standby": gettext_lazy("standby"),
}
TREND_MINUTES: Final = 60
# Of the minute that is over the sample comes within ten seconds, or twenty.
SAMPLED_WITHIN: Final = 3
MAX_SILENT: Final = 100


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue of the overview, in words."""

    kind: str
    queue: str
    codec: str
    handler: str
    due: str
    scheduled: str
    leased: str
    dead: str
    dead_count: int
    late_by: timedelta | None
    workers: int
    rate: str
    pause: Any
    trend: Sequence[Step]

    @property
    def query(self) -> str:
        return urlencode({KIND: self.kind})

    @property
    def lateness(self) -> str:
        return "" if self.late_by is None else human(self.late_by)

    @property
    def due_trend(self) -> SafeString | str:
        words = _("Due in an hour: %(due)s now") % {"due": self.due}
        return _spark([each.due for each in self.trend], "dq-of-due", words)

    @property
    def late_trend(self) -> SafeString | str:
        late = self.lateness or _("nothing")
        words = _("Most overdue in an hour: %(late)s now") % {"late": late}
        return _spark([each.late for each in self.trend], "dq-of-alarm", words)

    @property
    def is_late(self) -> bool:
        return self.late_by is not None and self.late_by > _LATE

    @property
    def is_unserved(self) -> bool:
        """Return whether messages wait, or will, and no worker has shown itself for them."""
        is_empty = (self.due, self.scheduled, self.leased) == ("0",) * 3
        return self.workers == 0 and self.pause is None and not is_empty

    @property
    def paused_for(self) -> str:
        return "" if self.pause is None else human(self.pause.read_at - self.pause.paused_at)


def _spark(values: Values, css: str, words: str) -> SafeString | str:
    return sparkline(values, css, words) if any(values) else ""


def summary(lines: Sequence[QueueLine], silent: int, *, may_view_letters: bool) -> str:
    """Return what is wrong in one line, the worst first; empty when nothing is."""
    late = sum(each.is_late and each.pause is None for each in lines)
    unserved = sum(each.is_unserved for each in lines)
    dead = sum(each.dead_count for each in lines if may_view_letters)
    paused = sum(each.pause is not None for each in lines)
    parts = (
        (late, number(late), ngettext("%(number)s queue late", "%(number)s queues late", late)),
        (unserved, number(unserved), _("%(number)s without a worker")),
        (dead, number(dead), _("%(number)s dead")),
        (silent, _capped(silent),
         ngettext("%(number)s worker silent", "%(number)s workers silent", silent)),
        (paused, number(paused), _("%(number)s paused")),
    )  # fmt: skip
    return ", ".join(words % {"number": shown} for number, shown, words in parts if number)


def _capped(silent: int) -> str:
    return counted(Count(min(silent, MAX_SILENT), silent > MAX_SILENT))


def queues_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    if request.method == "POST":
        return switch_view(model_admin, request)
    using = model_admin.get_queryset(request).db
    pauses = {row.kind: row for row in paused_rows(model_admin, request)[: MAX_KINDS + 1]}
    kinds, is_cut = find_kinds(using, also=list(pauses))
    found, now, last = trends(kinds, TREND_MINUTES, using=using)
    lines = _lines(kinds, found, pauses, using)
    silent, snapshot = _silent_workers(using), _old_snapshot(using)
    may_view_letters = request.user.has_perm("delayed_queue.view_deadletter")
    wrong = summary(lines, silent, may_view_letters=may_view_letters)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": wrong or _("All queues in order"),
        "opts": QueueOverview._meta,
        "media": model_admin.media,
        "lines": lines,
        "unsampled": _unsampled(now, last),
        "snapshot": snapshot,
        "snapshot_holder": "" if snapshot is None else holder_of(snapshot),
        "snapshot_place": "" if snapshot is None else place_of(snapshot),
        "is_cut": is_cut,
        "max_kinds": MAX_KINDS,
        "may_view_letters": may_view_letters,
        "may_view_workers": request.user.has_perm("delayed_queue.view_worker"),
        "may_pause": request.user.has_perm("delayed_queue.pause_queue"),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/delayed_queue/queues.html", context)


def _old_snapshot(using: str) -> Snapshot | None:
    found = oldest_snapshot(using)
    return found if found is not None and found.is_older_than(OLD) else None


def holder_of(snapshot: Snapshot) -> str:
    """Return who holds it and for how long, as its own words do, in the language of the page."""
    owner, elsewhere = {"name": snapshot.owner}, {"name": snapshot.elsewhere}
    words = [
        snapshot.application, snapshot.owner and _("user %(name)s") % owner, snapshot.state,
        snapshot.elsewhere and _("database %(name)s") % elsewhere,
    ]  # fmt: skip
    known = ", ".join(filter(None, words))
    span = ngettext("%(number)s transaction", "%(number)s transactions", snapshot.transactions) % {
        "number": number(snapshot.transactions)
    }
    if snapshot.age is not None:
        span = f"{human(snapshot.age)} ({span})"
    who = f"{_HOLDERS[snapshot.holder]} {snapshot.name}{f' ({known})' if known else ''}"
    return _("%(holder)s, for %(span)s") % {"holder": who, "span": span}


def place_of(snapshot: Snapshot) -> str:
    """Return where the remedy is run, if not here, in the language of the page."""
    if snapshot.holder == "standby":
        return _("on the standby")
    if not snapshot.place:
        return ""
    return _("in the database %(name)s") % {"name": snapshot.elsewhere}


def _silent_workers(using: str) -> int:
    rows = Worker.objects.using(using).filter(heartbeat_at__lte=DatabaseClock(ALIVE))
    return len(rows.values_list("id")[: MAX_SILENT + 1])


def _unsampled(now: int, last: int | None) -> str:
    """Return since when nobody takes samples; empty where somebody does, or never did."""
    if last is None or now - last <= SAMPLED_WITHIN or get_settings().SAMPLE_RETENTION is None:
        return ""
    return human((now - last) * MINUTE)


def _lines(
    kinds: list[str], trend: dict[str, list[Step]], pauses: dict[str, Any], using: str
) -> list[QueueLine]:
    found = estimated_depths(kinds, using=using)
    summed = Worker.objects.throughput(ALIVE // MILLISECOND, using=using)
    served = {each.queue: each for each in summed}
    return sorted(
        (_line(each, served, pauses.get(each.kind), trend[each.kind]) for each in found),
        key=_urgency,
    )


def _line(
    depth: QueueDepth, served: dict[str, ThroughputRow], pause: Any, trend: Sequence[Step]
) -> QueueLine:
    service = served.get(depth.name.queue, ThroughputRow(depth.name.queue, 0, 0.0))
    handler = handler_of(depth.kind)
    return QueueLine(
        kind=depth.kind,
        queue=depth.name.queue,
        codec=depth.name.codec,
        handler="" if handler is None else dotted(handler.path),
        due=counted(depth.due),
        scheduled=counted(depth.scheduled),
        leased=counted(depth.leased),
        dead=counted(depth.dead),
        dead_count=depth.dead.value,
        late_by=depth.oldest_due_age,
        workers=service.workers,
        rate=per_second(service.rate) if service.workers else "",
        pause=pause,
        trend=trend,
    )


def _urgency(line: QueueLine) -> tuple[bool, timedelta, str]:
    """Sort the latest queue first, queues with nothing due behind, by name."""
    late_by = line.late_by
    return (late_by is None, -(late_by or timedelta(0)), line.kind)
