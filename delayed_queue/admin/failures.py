"""What is dead, by its cause, and the bulk runs that mend it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import F
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.filters import GROUP, KIND, chosen_kind, valid_kind
from delayed_queue.admin.operations import (
    Call,
    DurationField,
    Entry,
    Report,
    Switch,
    reasons,
    record,
)
from delayed_queue.db.clock import ago, database_now
from delayed_queue.exceptions import DelayedQueueError, InvalidMessage
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import BulkRun, DeadLetter
from delayed_queue.observe.overview import Count, KindName, name_of
from delayed_queue.queue.bulk import (
    MAX_CANARY,
    MAX_PACE,
    PREVIEW_CAP,
    REDRIVE,
    BulkPlan,
    switch_run,
)
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.store.bulk import PAUSED, RUNNING
from delayed_queue.queue.store.dead_letters import GROUP_CAP, MAX_GROUPS, GroupRow

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

SHOWN: Final = 25
_ASKED: Final = {
    "redrive": (_("Redrive"), _("Redrive all dead letters of this failure?")),
    "drop": (_("Drop"), _("Drop all dead letters of this failure?")),
}
_STATES: Final = {
    "running": _("running"), "paused": _("paused"), "done": _("done"),
    "cancelled": _("cancelled"), "stopped": _("stopped"),
}  # fmt: skip
_PERMISSIONS: Final = {
    "redrive": "delayed_queue.redrive_deadletter",
    "drop": "delayed_queue.drop_deadletter",
}


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A failure of a queue, in words."""

    row: GroupRow
    read_at: datetime

    @property
    def name(self) -> KindName:
        return name_of(self.row.kind)

    @property
    def title(self) -> str:
        return formats.printable(describe(self.row.reason, self.row.error))

    @property
    def count(self) -> str:
        cap = GROUP_CAP - 1
        return formats.counted(Count(min(self.row.letters, cap), self.row.letters > cap))

    @property
    def first(self) -> Any:
        return self._moment(self.row.first_at)

    @property
    def last(self) -> Any:
        return self._moment(self.row.last_at)

    def _moment(self, instant: int) -> Any:
        at = from_milliseconds(instant)
        return formats.moment(at, formats.relative(at, self.read_at))

    @property
    def query(self) -> str:
        return urlencode({KIND: self.row.kind, GROUP: self.row.fingerprint})


def failures_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    if request.method == "POST":
        return run_view(model_admin, request)
    using = model_admin.get_queryset(request).db
    kind = chosen_kind(request)
    kinds = None if kind is None else [valid_kind(kind)]
    rows = DeadLetter.objects.groups(kinds, shown=SHOWN, using=using)
    found, now = rows[0].groups if rows else 0, database_now(using)
    context = {
        **_frame(model_admin, request, _("Failures")),
        "lines": [GroupLine(row, now) for row in rows],
        "hidden": max(found - SHOWN, 0),
        "is_cut": found == MAX_GROUPS,
        "may": [
            (name, _ASKED[name][0])
            for name, needed in _PERMISSIONS.items()
            if request.user.has_perm(needed)
        ],
    }
    return TemplateResponse(request, "admin/delayed_queue/failures.html", context)


def _frame(model_admin: QueueModelAdmin, request: HttpRequest, title: Any) -> dict[str, Any]:
    request.current_app = model_admin.admin_site.name
    return {
        **model_admin.admin_site.each_context(request),
        "title": title,
        "opts": model_admin.opts,
        "media": model_admin.media,
    }


class RunForm(forms.Form):
    """How a run goes about it, and why."""

    pace = forms.IntegerField(
        required=False, min_value=1, max_value=MAX_PACE, label=_("Dead letters a second"),
        help_text=_("Empty: as fast as possible."),
    )  # fmt: skip
    over = DurationField(_("Spread over"), _("A duration such as 2h, instead of a rate."))
    newer_than = DurationField(_("Died within the last …"), _("A duration, for example 30m or 2d."))
    older_than = DurationField(_("Died longer ago than …"), _("A duration, for example 30m or 2d."))
    limit = forms.IntegerField(
        required=False, min_value=1, label=_("At most"), help_text=_("Empty: all.")
    )
    canary = forms.IntegerField(
        required=False, min_value=1, max_value=MAX_CANARY, label=_("Canary"),
        help_text=_(
            "Redrive this many first; continue only if they do not die of the same "
            "failure."),
    )  # fmt: skip
    canary_deaths = forms.IntegerField(
        required=False, min_value=1, max_value=MAX_CANARY, label=_("Stop after"),
        help_text=_("Stop if this many of the canary die again. Empty: 1."),
    )  # fmt: skip
    why = forms.CharField(
        required=False, max_length=500, label=_("Why"), help_text=_("Stored with the run.")
    )

    def __init__(self, data: Any, plan: BulkPlan, using: str) -> None:
        super().__init__(data)
        self.using = using
        # What is meant; of all letters of the failure, while what was typed makes no plan.
        self.plan = plan
        if plan.action != REDRIVE:
            del self.fields["canary"], self.fields["canary_deaths"]

    def clean(self) -> None:
        if not self.errors:
            with reasons():
                self.plan = replace(self.plan, **self._given())

    def _given(self) -> dict[str, Any]:
        given = {
            name: value
            for name, value in self.cleaned_data.items()
            if value is not None and name != "why"
        }
        for name, age in (("since", "newer_than"), ("until", "older_than")):
            if age in given:
                given[name] = ago(given.pop(age), self.using)
        return given


def run_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    """Begin a run over the posted group, after a page that says how many letters it takes."""
    action = next((each for each in _PERMISSIONS if each in request.POST), "")
    if not action:
        raise BadRequest("The action must be redrive or drop.")
    if not request.user.has_perm(_PERMISSIONS[action]):
        raise PermissionDenied
    is_confirmed, is_filled = "confirmed" in request.POST, "why" in request.POST
    using = model_admin.get_queryset(request).select_for_update().db
    posted = request.POST if is_filled or is_confirmed else None
    form = RunForm(posted, _plan(request, action), using)
    if not form.is_valid() or not is_confirmed or not _begin(request, form, using):
        return _confirmation(model_admin, request, form, using)
    url = reverse("admin:delayed_queue_bulkrun_changelist", current_app=model_admin.admin_site.name)
    text = _("The run has started. Workers carry it out; this page shows their progress.")
    model_admin.message_user(request, text, messages.SUCCESS)
    return HttpResponseRedirect(url)


def _plan(request: HttpRequest, action: str) -> BulkPlan:
    fingerprint, kind = request.POST[action].partition(":")[::2]
    try:
        return BulkPlan(action, kind, fingerprint)
    except InvalidMessage as error:
        raise BadRequest(str(error)) from error


def _begin(request: HttpRequest, form: RunForm, using: str) -> bool:
    """Begin the run; where there is nothing to do or another does it, say so on the form."""
    call = Call(BulkRun.objects.using(using), [], request.user)
    plan, why = form.plan, form.cleaned_data["why"]
    try:
        with call.transaction():
            run_id = plan.start(by=str(request.user), why=why, using=using)
            row = BulkRun.objects.using(using).get(pk=run_id)
            said = f"Begun. Failure {plan.fingerprint} of {plan.kind}." + (f" {why}" if why else "")
            record(call, ADDITION, [Entry(row, said)])
    except DelayedQueueError as error:
        form.add_error(None, formats.printable(str(error)))
        return False
    return True


def _confirmation(
    model_admin: QueueModelAdmin,
    request: HttpRequest,
    form: RunForm,
    using: str,
) -> HttpResponse:
    plan = form.plan
    found = plan.preview(using)
    label, title = _ASKED[plan.action]
    letters = DeadLetter.objects.using(using).filter(kind=plan.kind, fingerprint=plan.fingerprint)
    example = letters.order_by("-died_at", "-id").only("reason", "last_error").first()
    context = {
        **_frame(model_admin, request, title),
        "action": plan.action,
        "label": label,
        "target": request.POST[plan.action],
        "queue": name_of(plan.kind),
        "failure": example and formats.printable(describe(example.reason, example.last_error)),
        "meant": found.meant,
        "count": formats.counted(Count(found.meant, found.seen == PREVIEW_CAP)),
        "form": form,
    }
    return TemplateResponse(request, "admin/delayed_queue/confirm_run.html", context)


class RunSwitch(Switch):
    """Pause, resume or cancel, as ``switch_run`` does."""

    noun = ngettext_lazy("%(count)s run", "%(count)s runs", "count")
    permission = _PERMISSIONS["redrive"]
    left = _("which is no longer in that state")
    states: tuple[str, ...] = (RUNNING,)

    def fits(self, row: Any) -> bool:
        return row.state in self.states

    def change(self, row: Any, call: Call, report: Report) -> bool:
        return switch_run(row.id, self.name, using=call.using)


class PauseRun(RunSwitch):
    name = "pause"
    label = _("Pause")
    past = _("Paused")
    help = _("Stop until the run is resumed.")


class ResumeRun(RunSwitch):
    name = "resume"
    label = _("Resume")
    past = _("Resumed")
    help = _("Continue where the run was paused.")
    states = (PAUSED,)


class CancelRun(RunSwitch):
    name = "cancel"
    label = _("Cancel")
    past = _("Cancelled")
    help = _("Stop the run for good. Dead letters that it handled stay handled.")
    warning = _(
        "The run stops for good. Dead letters that it handled stay handled; the others remain."
    )
    states = (RUNNING, PAUSED)


def _field(name: str, words: Any) -> Any:
    """Return a column of a field, under words of ours."""

    @admin.display(description=words)
    def column(self: Any, row: Any) -> Any:
        found = getattr(row, name)
        if found in (None, ""):
            return formats.NOTHING
        return formats.number(found) if isinstance(found, int) else found

    return column


@admin.register(BulkRun)
class BulkRunAdmin(RecordAdmin):
    """What was done to many letters: how far it is, who began it and why."""

    operations = (PauseRun(), ResumeRun(), CancelRun())
    name_field = "kind"
    list_display = (
        "key_column", "queue_column", "state_column", "progress_column", "begun_column", "because",
    )  # fmt: skip
    readonly_fields = (
        "state_column", "progress_column", "queue_column", "failure", "begins", "pace_column",
        "most", "first_few", "left_out", "begun_by", "because", "begun_column", "ended",
    )  # fmt: skip

    begins = _field("reason", _("reason"))
    most = _field("limit", _("limit"))
    first_few = _field("canary", _("canary"))
    left_out = _field("skipped", _("skipped"))
    begun_by = _field("started_by", _("started by"))
    because = _field("why", _("why"))

    def get_queryset(self, request: HttpRequest) -> Any:
        return super().get_queryset(request).annotate(named=F("action"))

    @admin.display(description=_("run"))
    def key_column(self, row: Any) -> str:
        return f"{_ASKED[row.action][0]} #{row.id}"

    def title_of(self, row: Any) -> str:
        facts = {"run": self.key_column(row), "queue": name_of(row.kind).queue}
        return str(_("%(run)s of %(queue)s") % facts)

    @admin.display(description=_("queue"))
    def queue_column(self, row: Any) -> Any:
        return formats.kind_label(row.kind)

    @admin.display(description=_("pace"))
    def pace_column(self, row: Any) -> str:
        return str(_("as fast as possible")) if row.pace is None else formats.per_second(row.pace)

    @admin.display(description=_("state"))
    def state_column(self, row: Any) -> str:
        if row.state == RUNNING and row.canary and not row.is_canary_over:
            return str(_("running, the canary first"))
        state = _STATES[row.state]
        return f"{state}: {row.note}" if row.note else str(state)

    @admin.display(description=_("progress"))
    def progress_column(self, row: Any) -> str:
        left = max(row.total - row.done - row.skipped, 0)
        seconds = ((row.ended_at or row.read_at) - row.created_at).total_seconds()
        rate = formats.per_second(row.done / seconds) if seconds > 0 else ""
        more = formats.counted(Count(left, row.is_total_cut))
        facts = (_("%s done") % formats.number(row.done), _("%s left") % more, rate)
        return " · ".join(str(each) for each in facts if each)

    @admin.display(description=_("begun"))
    def begun_column(self, row: Any) -> Any:
        return formats.moment(row.created_at, formats.relative(row.created_at, row.read_at))

    @admin.display(description=_("failure"))
    def failure(self, row: Any) -> str:
        return str(_("all of the queue")) if row.fingerprint is None else row.fingerprint

    @admin.display(description=_("ended"))
    def ended(self, row: Any) -> Any:
        return formats.NOTHING if row.ended_at is None else formats.exact(row.ended_at)
