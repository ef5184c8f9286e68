"""Pausing and resuming a queue from the overview, asked first and recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib.admin.models import CHANGE
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from delayed_queue.admin.formats import human
from delayed_queue.admin.message_operations import wake
from delayed_queue.admin.operations import (
    Call,
    Entry,
    Operation,
    Report,
    lock,
    parse_ids,
    record,
)
from delayed_queue.admin.rows import DatabaseClock
from delayed_queue.codecs import check_kind
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.handlers import storable
from delayed_queue.models import PausedQueue
from delayed_queue.observe.overview import KindName, name_of
from delayed_queue.queue.store.pauses import PausedQueueManager

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

_CONFIRMED: Final = "confirmed"


class PauseForm(forms.Form):
    """Why; shown beside the queue for as long as it is paused."""

    reason = forms.CharField(
        max_length=500, required=False, widget=forms.TextInput(attrs={"size": 60}),
        help_text="For your colleagues: it is shown beside the queue.",
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
    label = "Pause"
    help = "Hand out no message of this queue until it is resumed."
    warning = (
        "No consumer and no worker is handed a message of this queue until it is resumed, in "
        "any process, at once. Offers go on, and messages in flight are finished."
    )
    form_class = PauseForm

    def name_of_target(self, call: Call) -> str:
        return call.tokens[0]

    def run(self, call: Call) -> Report:
        report = Report("Paused", "queue")
        kind, reason = call.tokens[0], storable(call.options.get("reason", ""))
        with call.transaction():
            by = call.user.get_username()
            if _pauses().pause(kind, reason=reason, by=by, using=call.using):
                report.changed.append(name_of(kind).queue)
                row = call.queryset.using(call.using).get(kind=kind)
                record(call, CHANGE, [Entry(row, _audit("Paused", kind, reason))])
            else:
                report.leave("paused already", name_of(kind).queue)
        return report


class Resume(Switch):
    """The token is the pause that was seen: a later one has its own reason, and stays."""

    name = "resume"
    label = "Resume"
    help = "Hand out messages of this queue again."
    warning = "Its messages are handed out again, those that fell due meanwhile at once."

    def name_of_target(self, call: Call) -> str:
        rows = call.queryset.filter(id__in=parse_ids(call.tokens))
        return next(iter(rows.values_list("kind", flat=True)), "")

    def run(self, call: Call) -> Report:
        report = Report("Resumed", "queue")
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
    rows = PausedQueue.objects.using(using).order_by("kind")
    return rows.annotate(read_at=DatabaseClock(), key=F("kind"))


def switch_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    """Pause or resume what was posted, after a page that asks."""
    switch = next((each for each in SWITCHES if each.name in request.POST), None)
    if switch is None:
        raise BadRequest("Neither pause nor resume.")
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
    context = {
        **model_admin.admin_site.each_context(request),
        "title": f"{switch.label} {name.queue}?",
        "opts": model_admin.opts,
        "media": model_admin.media,
        "switch": switch,
        "target": call.tokens[0],
        "queue": name,
        "pause": row,
        "paused_for": "" if row is None else human(row.read_at - row.paused_at),
        "form": form,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/delayed_queue/confirm_switch.html", context)


def _pauses() -> PausedQueueManager[PausedQueue]:
    return PausedQueue.objects


def _audit(past: str, kind: str, reason: str) -> str:
    return f"{past}. Queue {kind}." + (f" Reason: {reason}" if reason else "")
