"""The bulk runs over dead letters: their progress, and pausing, resuming and cancelling them."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.formats import column, count_column, time_column
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.models import BulkRun
from delayed_queue.observe.overview import Count, name_of
from delayed_queue.queue.bulk import switch_run
from delayed_queue.queue.store.bulk import PAUSED, RUNNING

_ACTIONS: Final = {"redrive": _("Redrive"), "drop": _("Drop")}
_STATES: Final = {
    "running": _("running"), "paused": _("paused"), "done": _("done"),
    "cancelled": _("cancelled"), "stopped": _("stopped"),
}  # fmt: skip


class RunSwitch(Operation):
    """Pauses, resumes or cancels a run that is in one of ``states``."""

    noun = ngettext_lazy("%(count)s run", "%(count)s runs", "count")
    permission = "delayed_queue.redrive_deadletter"
    states: tuple[str, ...] = (RUNNING,)

    def fits(self, row: Any) -> bool:
        return row.state in self.states

    def change(self, row: Any, call: Call, report: Report) -> Any:
        is_switched = switch_run(row.id, self.name, using=call.using)
        return is_switched or _("which is no longer in that state")

    def name_of(self, row: Any) -> str:
        return str(row)


class PauseRun(RunSwitch):
    name, label, past = "pause", _("Pause"), _("Paused")
    help = _("Stop until the run is resumed.")


class ResumeRun(RunSwitch):
    name, label, past = "resume", _("Resume"), _("Resumed")
    help = _("Continue where the run was paused.")
    states = (PAUSED,)


class CancelRun(RunSwitch):
    name, label, past = "cancel", _("Cancel"), _("Cancelled")
    help = _("Stop the run for good. Dead letters that it handled stay handled.")
    warning = _(
        "The run stops for good. Dead letters that it handled stay handled; the others remain."
    )
    states = (RUNNING, PAUSED)


@admin.register(BulkRun)
class BulkRunAdmin(RecordAdmin):
    """The progress of each run, who started it and why."""

    operations = (PauseRun(), ResumeRun(), CancelRun())
    name_field = "kind"
    change_form_template = "admin/delayed_queue/live_detail.html"
    list_display = (
        "key_column", "queue_column", "failure_column", "state_column", "progress_column",
        "begun_column", "because",
    )  # fmt: skip
    readonly_fields = (
        "state_column", "progress_column", "queue_column", "failure_column", "begins",
        "pace_column", "most", "first_few", "left_out", "begun_by", "because", "begun_column",
        "ended",
    )  # fmt: skip

    begins = column(_("reason"), "reason")
    most = count_column(_("limit"), "limit")
    first_few = count_column(_("canary"), "canary")
    left_out = count_column(_("skipped"), "skipped")
    begun_by = column(_("started by"), "started_by")
    because = column(_("why"), "why")
    key_column = column(_("run"), lambda row: f"{_ACTIONS[row.action]} #{row.id}")
    begun_column = time_column(_("begun"), "created_at")
    ended = time_column(_("ended"), "ended_at")
    pace_column = column(
        _("pace"),
        lambda row: _("as fast as possible") if row.pace is None else formats.per_second(row.pace),
    )
    failure_column = column(
        _("failure"),
        lambda row: (
            formats.shortened(row.failure or row.fingerprint, 160)
            if row.fingerprint is not None
            else _("all of the queue")
            if row.group is None
            else _("all of the group %(group)s") % {"group": row.group}
        ),
    )

    def title_of(self, row: Any) -> str:
        facts = {"run": f"{_ACTIONS[row.action]} #{row.id}", "queue": name_of(row.kind).queue}
        return str(_("%(run)s of %(queue)s") % facts)

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
