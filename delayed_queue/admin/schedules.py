"""The schedules: when they run next, operations on them, and a form to make them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.db import connections, router
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import MadeByForm
from delayed_queue.admin.formats import column
from delayed_queue.admin.lists import Keyset
from delayed_queue.admin.operations import Call, Operation, Report, english
from delayed_queue.admin.rows import find
from delayed_queue.admin.schedule_forms import ScheduleForm
from delayed_queue.admin.schedule_preview import declared_entry, next_run, preview
from delayed_queue.cron.keeper import installer_of
from delayed_queue.cron.models import MAX_RUNS
from delayed_queue.facade import DelayedQueue
from delayed_queue.handlers import registry
from delayed_queue.messages import OfferOutcome, to_milliseconds
from delayed_queue.models import Schedule, ScheduleRun


class ScheduleOperation(Operation):
    """An operation on schedules."""

    noun = ngettext_lazy("%(count)s schedule", "%(count)s schedules", "count")

    def note(self, row: Any) -> str:
        """Return a sentence to append to the audit."""
        return ""

    def audit(self, row: Any, call: Call) -> str:
        of = f"Queue {row.kind}, key prefix {row.key_prefix!r}."
        return f"{english(self.past)}. {of}{self.note(row)}"


class Switch(ScheduleOperation):
    """Pauses or enables schedules."""

    permission = "delayed_queue.pause_schedule"
    enables: bool
    already: Any

    def fits(self, row: Any) -> bool:
        return bool(row.is_enabled) is not self.enables

    def change(self, row: Any, call: Call, report: Report) -> Any:
        if not self.fits(row):
            return self.already
        row.is_enabled = self.enables
        row.save(using=call.using, update_fields=["is_enabled"])
        if not self.enables:
            row.taken_back = take_back(row, call.using)
        return True

    def note(self, row: Any) -> str:
        return "" if self.enables else f" Pending ticks removed: {row.taken_back}."


class Enable(Switch):
    name, label, past = "enable", _("Enable"), _("Enabled")
    help = _("Workers write its ticks again within ten seconds. Missed runs are not caught up.")
    enables, already = True, _("enabled already")


class Pause(Switch):
    name, label, past = "pause", _("Pause"), _("Paused")
    help = _("Remove its pending ticks and write none until the schedule is enabled.")
    enables, already = False, _("paused already")


class RunNow(ScheduleOperation):
    name, label, past = "run_now", _("Run now"), _("Run")
    help = _(
        "Offer one message with its payload, due now, in addition to its ticks. Works "
        "for a paused schedule too."
    )
    permission = "delayed_queue.run_schedule"
    # The generator of a declared schedule is code of the project.
    failed = _("because its payload could not be offered (%(error)s)")

    def change(self, row: Any, call: Call, report: Report) -> Any:
        row.run_key = f"{row.key_prefix}/run-now-{to_milliseconds(row.read_at)}"
        entry = declared_entry(row.kind, row.key_prefix)
        if entry is not None:
            queue = installer_of(entry, call.using).ticks.queue
            payload = entry.generate(row.read_at)
        elif row.declared_in:
            said = _("because its code, %(module)s, is not loaded in this process")
            return said % {"module": row.declared_in}
        else:
            queue = DelayedQueue(row.queue, codec=row.codec, kind=row.kind, using=call.using)
            payload = row.payload
        is_ignored = queue.offer_if_not_exists(row.run_key, payload) is OfferOutcome.IGNORED
        return _("already run in this millisecond") if is_ignored else True

    def note(self, row: Any) -> str:
        return f" Offered {row.run_key!r}."


def take_back(row: Schedule, using: str) -> int:
    """Remove the pending ticks of the schedule; return their number.

    Earlier configurations are included: a tick in flight outlives its configuration and waits
    for a retry if its handler fails.
    """
    # Reads no payload, so it needs no codec that only the workers have.
    service = DelayedQueue(row.queue, kind=row.kind, using=using).cron
    hashes = dict.fromkeys([row.config_hash, *row.retired_hashes])
    return sum(service.uninstall_tick(each, row.key_prefix) for each in hashes if each)


# By the outcome of a run: the look and the words.
_OUTCOMES: Final = {
    "done": ("due", _("done")), "failed": ("expired", _("failed, to be retried")),
    "dead": ("alarm", _("dead")),
}  # fmt: skip
_TYPES: Final = ("cron", "daily", "periodic", "other")
_MADE: Final = ("type", "expression", "timezone", "gap", "fold", "missed", "missed_cap")
_SHOWN: Final = ("declared_column", "past_runs", "runs")


@admin.register(Schedule)
class ScheduleAdmin(MadeByForm):
    """In the order of creation; schedules that code declares can only be paused."""

    form = ScheduleForm
    operations = (RunNow(), Pause(), Enable())
    name_field = "key_prefix"
    search_fields = ("=key",)
    search_help_text = _("The whole key prefix. All queues are searched.")
    list_display = (
        "key_column", "queue_column", "rule_column", "zone_column", "enabled_column",
        "last_column", "next_column", "declared_column",
    )  # fmt: skip

    key_column = column(_("key prefix"), lambda row: formats.key_label(row.key_prefix))
    rule_column = column(
        _("runs"),
        lambda row: format_html('{} <span class="dq-at">{}</span>', row.type, row.expression),
    )
    zone_column = column(
        _("zone"),
        lambda row: row.timezone or (None if row.type == "periodic" else _("default")),
    )
    enabled_column = column(
        _("enabled"),
        lambda row: (
            formats.state("due", _("enabled"))
            if row.is_enabled
            else formats.state("scheduled", _("paused"))
        ),
    )
    next_column = column(_("next run"), lambda row: next_run(row, row.read_at))
    declared_column = column(_("declared in"), lambda row: row.declared_in or "admin")
    runs = column(_("next runs"), lambda row: preview(row, row.read_at))

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return Keyset()

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        """Add the last run of each schedule of the page."""
        # 0 keeps the list from being empty: every page runs the same statements.
        runs = ScheduleRun.objects.using(using).filter(schedule__in=[0, *(row.pk for row in rows)])
        latest = runs.order_by("schedule_id", "-planned_at", "-id").distinct("schedule_id")
        found = {each.schedule_id: each for each in latest}
        for row in rows:
            row.last_run = found.get(row.pk)

    @admin.display(description=_("last run"))
    def last_column(self, row: Any) -> SafeString:
        if row.last_run is None:
            return formats.NOTHING
        when = formats.since(row.last_run.finished_at, row.read_at)
        return format_html("{} {}", self._outcome(row.last_run), when)

    @admin.display(description=_("last runs"))
    def past_runs(self, row: Schedule) -> SafeString:
        runs = row.runs.order_by("-planned_at", "-id")[:MAX_RUNS]
        lines = [
            (
                formats.moment(each.planned_at, formats.dated(each.planned_at, "D Y-m-d H:i:s T")),
                formats.seconds_between(each.started_at, each.finished_at),
                self._outcome(each), each.attempts, each.worker,
            )
            for each in runs
        ]  # fmt: skip
        heads = (_("planned"), _("duration"), _("run ended"), _("attempts"), _("worker"))
        none = _("No worker has finished a run yet.")
        return formats.table(heads, lines) if lines else formats.quiet(none)

    def _outcome(self, run: ScheduleRun) -> SafeString:
        """Return the outcome; of a failed run with a link to its message or dead letter."""
        shown = formats.state(*_OUTCOMES[run.outcome])
        target = {"failed": "message", "dead": "deadletter"}.get(run.outcome)
        if target is None:
            return shown
        return formats.link(self.url(f"delayed_queue_{target}_changelist", q=run.key), shown)

    # Reading

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the schedules with a definition; programs may install ticks without one."""
        return super().get_queryset(request).filter(type__in=_TYPES)

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row, locked before a change, so that a pause is not undone."""
        queryset = self.get_queryset(request)
        locked = queryset.select_for_update()
        if request.method == "POST" and connections[locked.db].in_atomic_block:
            queryset = locked
        return find(queryset, object_id)

    # Permissions

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._is_own(obj) and self.may(request, "delayed_queue.change_schedule")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self._is_own(obj) and self.may(request, "delayed_queue.delete_schedule")

    def _is_own(self, row: Any) -> bool:
        return row is None or not row.declared_in

    # The form and the detail page

    @admin.display(description=_("payload"))
    def payload_shown(self, row: Any) -> SafeString:
        if row.declared_in:
            return formats.quiet(_("Computed by the code that declares the schedule."))
        if not row.shows_payload:
            return formats.quiet(_("Hidden: needs the permission delayed_queue.view_payload."))
        return formats.block(json.dumps(row.payload, indent=2, ensure_ascii=False))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ("queue", "key_prefix", *_MADE, "payload", "is_enabled")
        obj.shows_payload = self.may(request, "delayed_queue.view_payload")
        is_typed = obj.shows_payload and self.has_change_permission(request, obj)
        payload = "payload" if is_typed else "payload_shown"
        return ("queue", "key_prefix", "codec", *_MADE, payload, "is_enabled", *_SHOWN)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ()
        # Another queue or prefix would be another schedule; the ticks of this one would stay.
        fixed = ("queue", "key_prefix", "codec", "payload_shown", *_SHOWN)
        may_pause = self.may(request, "delayed_queue.pause_schedule")
        return fixed if may_pause else (*fixed, "is_enabled")

    # Changing

    def save_model(self, request: HttpRequest, obj: Any, form: forms.Form, change: bool) -> None:
        """Save; remove the pending ticks at once if that pauses the schedule."""
        super().save_model(request, obj, form, change)
        if change and "is_enabled" in form.changed_data and not obj.is_enabled:
            take_back(obj, router.db_for_write(Schedule, instance=obj))
        if lack := registry.lack_of(obj.queue, obj.kind):
            text = _("Its messages wait until a handler serves this queue.")
            self.message_user(request, f"{lack} {text}", messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete the pending ticks, then the row."""
        take_back(obj, router.db_for_write(Schedule, instance=obj))
        super().delete_model(request, obj)
