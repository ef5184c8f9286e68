"""The schedules: what runs next, what can be done to them, and those that operators make."""

from __future__ import annotations

import json
from typing import Any, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.db import connections, router, transaction
from django.db.models import F, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import WithForm
from delayed_queue.admin.lists import DatabaseClock, Keyset, find
from delayed_queue.admin.operations import Call, Entry, Operation, Report, lock, parse_ids, record
from delayed_queue.admin.schedule_forms import ScheduleForm, declared_entry, next_run, preview
from delayed_queue.cron.keeper import installer_of
from delayed_queue.handlers import registry
from delayed_queue.messages import OfferOutcome, to_milliseconds
from delayed_queue.models import Schedule
from delayed_queue.queue.queue import DelayedQueue

_SCHEDULES: Final = ngettext_lazy("%(count)s schedule", "%(count)s schedules", "count")


class ScheduleOperation(Operation):
    """An operation on schedules, each row locked while it is done."""

    def apply(self, row: Any, call: Call) -> Any:
        """Change the row; return why it was left alone, or nothing."""
        raise NotImplementedError

    def note(self, row: Any) -> str:
        """Return what the audit says besides the name of the schedule."""
        return ""

    def run(self, call: Call) -> Report:
        report = Report(self.past, _SCHEDULES)
        with call.transaction():
            entries = []
            for row in lock(call, parse_ids(call.tokens), report):
                if why := self.apply(row, call):
                    report.leave(why, row.key_prefix)
                    continue
                report.changed.append(row.key_prefix)
                entries.append(Entry(row, self._audit(row)))
            record(call, CHANGE, entries)
        return report

    def _audit(self, row: Any) -> str:
        of = f"Queue {row.kind}, key prefix {row.key_prefix!r}."
        return f"{self.recorded}. {of}{self.note(row)}"


class Enable(ScheduleOperation):
    name = "enable"
    label = _("Enable")
    help = _("Workers write its ticks again within ten seconds. Missed runs are not caught up.")
    permission = "delayed_queue.pause_schedule"
    past = _("Enabled")

    def fits(self, row: Any) -> bool:
        return not row.is_enabled

    def apply(self, row: Any, call: Call) -> Any:
        if row.is_enabled:
            return _("enabled already")
        row.is_enabled = True
        row.save(using=call.using, update_fields=["is_enabled"])
        return ""


class Pause(ScheduleOperation):
    name = "pause"
    label = _("Pause")
    help = _("Remove its pending ticks and write none until the schedule is enabled.")
    permission = "delayed_queue.pause_schedule"
    past = _("Paused")

    def fits(self, row: Any) -> bool:
        return bool(row.is_enabled)

    def apply(self, row: Any, call: Call) -> Any:
        if not row.is_enabled:
            return _("paused already")
        row.is_enabled = False
        row.save(using=call.using, update_fields=["is_enabled"])
        row.taken_back = take_back(row, call.using)
        return ""

    def note(self, row: Any) -> str:
        return f" Pending ticks removed: {row.taken_back}."


class RunNow(ScheduleOperation):
    name = "run_now"
    label = _("Run now")
    help = _(
        "Offer one message with its payload, due now, in addition to its ticks. Works "
        "for a paused schedule too."
    )
    permission = "delayed_queue.run_schedule"
    past = _("Run")

    def apply(self, row: Any, call: Call) -> Any:
        row.run_key = f"{row.key_prefix}/run-now-{to_milliseconds(row.read_at)}"
        try:
            # Whatever a generator did to the database before it raised is undone.
            with transaction.atomic(using=call.using):
                return self._offer(row, call.using)
        # A generator is the project's own, and may raise anything.
        except Exception as error:
            said = _("because its payload could not be offered (%(error)s)")
            return said % {"error": f"{type(error).__name__}: {error}"}

    def _offer(self, row: Any, using: str) -> Any:
        entry = declared_entry(row.kind, row.key_prefix)
        if entry is not None:
            queue, payload = installer_of(entry, using).ticks.queue, entry.generate(row.read_at)
        elif row.declared_in:
            said = _("because its code, %(module)s, is not loaded in this process")
            return said % {"module": row.declared_in}
        else:
            queue = DelayedQueue(row.queue, codec=row.codec, kind=row.kind, using=using)
            payload = row.payload
        if queue.offer_if_not_exists(row.run_key, payload) is OfferOutcome.IGNORED:
            return _("already run in this millisecond")
        return ""

    def note(self, row: Any) -> str:
        return f" Offered {row.run_key!r}."


def take_back(row: Schedule, using: str) -> int:
    """Remove the pending ticks of the schedule; return how many there were.

    Of the configurations before too: a tick that was being handled outlives its configuration,
    and waits for a retry when its handler fails.
    """
    # No payload is read, so that a codec which only the workers know does not matter.
    service = DelayedQueue(row.queue, kind=row.kind, using=using).cron
    hashes = dict.fromkeys([row.config_hash, *row.retired_hashes])
    return sum(service.uninstall_tick(each, row.key_prefix) for each in hashes if each)


SCHEDULE_OPERATIONS: Final[tuple[Operation, ...]] = (RunNow(), Pause(), Enable())


_TYPES = ("cron", "daily", "periodic", "other")
_MADE = ("type", "expression", "timezone", "gap", "fold", "missed", "missed_cap")
_SHOWN = ("declared_column", "installed_column", "runs")
_ORDER = Keyset()


@admin.register(Schedule)
class ScheduleAdmin(WithForm):
    """In the order they were made; operators' own can be edited, those of code only paused."""

    form = ScheduleForm
    operations = SCHEDULE_OPERATIONS
    list_filter = ()
    list_display = (
        "key_column",
        "queue_column",
        "rule_column",
        "zone_column",
        "enabled_column",
        "next_column",
        "installed_column",
        "declared_column",
    )
    search_help_text = _("The whole key prefix. All queues are searched.")

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return _ORDER

    def token_of(self, row: Any) -> str:
        return str(row.id)

    # Reading

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return those with a definition; a program may have ticks for each of its users."""
        found = admin.ModelAdmin.get_queryset(self, request).filter(type__in=_TYPES)
        annotated: QuerySet[Any] = found.annotate(read_at=DatabaseClock(), key=F("key_prefix"))
        return annotated

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row; locked where it is about to be changed, or a pause could be undone."""
        queryset = self.get_queryset(request)
        locked = queryset.select_for_update()
        if request.method == "POST" and connections[locked.db].in_atomic_block:
            queryset = locked
        return find(queryset, object_id)

    # Permissions

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("delayed_queue.add_schedule"))

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_own = obj is None or not obj.declared_in
        return is_own and bool(request.user.has_perm("delayed_queue.change_schedule"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        is_own = obj is None or not obj.declared_in
        return is_own and bool(request.user.has_perm("delayed_queue.delete_schedule"))

    def _may_pause(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("delayed_queue.pause_schedule"))

    # Columns

    @admin.display(description=_("key prefix"))
    def key_column(self, row: Schedule) -> SafeString:
        return formats.key_label(row.key_prefix)

    @admin.display(description=_("queue"))
    def queue_column(self, row: Schedule) -> SafeString:
        return formats.kind_label(row.kind)

    @admin.display(description=_("runs"))
    def rule_column(self, row: Schedule) -> SafeString:
        return format_html('{} <span class="dq-at">{}</span>', row.type, row.expression)

    @admin.display(description=_("zone"))
    def zone_column(self, row: Schedule) -> str | SafeString:
        return row.timezone or (formats.NOTHING if row.type == "periodic" else str(_("default")))

    @admin.display(description=_("enabled"))
    def enabled_column(self, row: Schedule) -> SafeString:
        if row.is_enabled:
            return format_html('<span class="dq-state dq-due">{}</span>', _("enabled"))
        return format_html('<span class="dq-state dq-scheduled">{}</span>', _("paused"))

    @admin.display(description=_("next run"))
    def next_column(self, row: Any) -> SafeString:
        return next_run(row, row.read_at)

    @admin.display(description=_("last installed"))
    def installed_column(self, row: Any) -> SafeString:
        if row.installed_at is None:
            return formats.NOTHING
        return formats.moment(row.installed_at, formats.relative(row.installed_at, row.read_at))

    @admin.display(description=_("declared in"))
    def declared_column(self, row: Schedule) -> str:
        return row.declared_in or "admin"

    # The form and the detail page

    @admin.display(description=_("next runs"))
    def runs(self, row: Any) -> SafeString:
        return preview(row, row.read_at)

    @admin.display(description=_("payload"))
    def payload_shown(self, row: Schedule) -> SafeString:
        if row.declared_in:
            return formats.quiet(_("Computed by the code that declares the schedule."))
        return formats.block(json.dumps(row.payload, indent=2, ensure_ascii=False))

    @admin.display(description=_("payload"))
    def payload_hidden(self, row: Schedule) -> SafeString:
        return formats.quiet(_("Hidden: needs the permission delayed_queue.view_payload."))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ("queue", "key_prefix", *_MADE, "payload", "is_enabled")
        return ("queue", "key_prefix", "codec", *_MADE, self._payload_field(request, obj),
                "is_enabled", *_SHOWN)  # fmt: skip

    def _payload_field(self, request: HttpRequest, row: Schedule) -> str:
        if not row.declared_in and not self.may_view_payload(request):
            return "payload_hidden"
        return "payload" if self.has_change_permission(request, row) else "payload_shown"

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return ()
        # Another queue or prefix would be another schedule, and the ticks of this one stay.
        fixed = ("queue", "key_prefix", "codec", "payload_hidden", "payload_shown", *_SHOWN)
        return fixed if self._may_pause(request) else (*fixed, "is_enabled")

    # Changing

    def save_model(self, request: HttpRequest, obj: Any, form: forms.Form, change: bool) -> None:
        """Save, and take the pending ticks back at once where that pauses it."""
        super().save_model(request, obj, form, change)
        if change and "is_enabled" in form.changed_data and not obj.is_enabled:
            take_back(obj, router.db_for_write(Schedule, instance=obj))
        if lack := registry.lack_of(obj.queue, obj.kind):
            text = _("Its messages wait until a handler serves this queue.")
            self.message_user(request, f"{lack} {text}", messages.WARNING)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        """Delete, with the pending ticks: nobody would take them back without the row."""
        take_back(obj, router.db_for_write(Schedule, instance=obj))
        super().delete_model(request, obj)
