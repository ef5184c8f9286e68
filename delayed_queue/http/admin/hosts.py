"""The hosts that callbacks fail at: which are suspended, until when, and why."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.operations import Call, Report, Switch
from delayed_queue.http.callbacks.breaker import LONGEST_PAUSE
from delayed_queue.http.callbacks.recalling import recall_host
from delayed_queue.http.models import Host
from delayed_queue.messages import MILLISECOND

_MINUTE: Final = timedelta(minutes=1)


class OpenForm(forms.Form):
    """For how long nothing is sent to a host, and why."""

    minutes = forms.IntegerField(
        min_value=1, max_value=LONGEST_PAUSE // _MINUTE, initial=30,
        help_text="Then one job is sent to it, and the others when that was received.",
    )  # fmt: skip
    reason = forms.CharField(
        max_length=400, required=False, widget=forms.TextInput(attrs={"size": 60}),
        help_text="For your colleagues: it is shown beside the host.",
    )  # fmt: skip


class Close(Switch):
    """Send to hosts again, without waiting for the end of their pause."""

    name, label, past, left = "close", "Send again", "Sending again to", "sent to already"
    noun = "host"
    help = "Send to the host again now, deferred jobs included, and forget its failures."
    permission = "delayed_queue_http.close_host"
    warning = (
        "Workers send to these hosts again within a second, and deferred jobs come from three "
        "seconds on, 500 a second. A host that still fails is suspended again by its failures, "
        "which count as attempts of its jobs."
    )

    def fits(self, row: Any) -> bool:
        return row.open_until is not None

    def change(self, row: Any, call: Call, report: Report) -> bool:
        return Host.objects.close(row.name, using=call.using)

    def audit(self, call: Call) -> str:
        return "Sending again."

    def follow(self, row: Any, call: Call, report: Report) -> None:
        note_recalled(row, recall_host(row, using=call.using), report)


class Open(Switch):
    """Send nothing to hosts for a while, as if they had failed."""

    name, label, past, left = "open", "Suspend", "Suspended", "suspended for longer"
    noun = "host"
    help = "Send nothing to the host for a while; its jobs are deferred, and lose no attempt."
    permission = "delayed_queue_http.close_host"
    warning = (
        "Workers send nothing more to these hosts, from a second on. Their jobs are deferred, for "
        "up to twice that time, unless you have them sent again before."
    )
    form_class = OpenForm

    def change(self, row: Any, call: Call, report: Report) -> bool:
        why = ": ".join(filter(None, [f"By {call.user.get_username()}", call.options["reason"]]))
        pause = call.options["minutes"] * _MINUTE // MILLISECOND
        return Host.objects.shut(row.name, why, pause=pause, using=call.using)

    def audit(self, call: Call) -> str:
        why = f" {call.options['reason']}" if call.options["reason"] else ""
        return f"{self.past} for {call.options['minutes']} min.{why}"


def note_recalled(row: Any, recalled: int, report: Report) -> None:
    """Say how many jobs come back, if any were deferred."""
    if recalled:
        report.notes.append(f"Deferred jobs for {row} that come from now on: {recalled:,}.")


@admin.register(Host)
class HostAdmin(RecordAdmin):
    """The latest that failed first; a host that never failed has no row."""

    operations = (Close(), Open())
    list_display = (
        "key_column", "state_column", "since_column", "again_column", "openings_column",
        "reason_column",
    )  # fmt: skip
    readonly_fields = (
        "state_column", "since_column", "again_column", "openings_column", "reason_shown",
    )  # fmt: skip

    @admin.display(description="host")
    def key_column(self, row: Host) -> SafeString:
        return formats.key_label(row.name)

    @admin.display(description="state")
    def state_column(self, row: Any) -> SafeString:
        return breaker_state(row)

    @admin.display(description="since")
    def since_column(self, row: Any) -> SafeString:
        if row.opened_at is None:
            return formats.NOTHING
        return formats.moment(row.opened_at, formats.relative(row.opened_at, row.read_at))

    @admin.display(description="probed")
    def again_column(self, row: Any) -> SafeString:
        if row.open_until is None:
            return formats.NOTHING
        return formats.moment(row.open_until, formats.relative(row.open_until, row.read_at))

    @admin.display(description="suspensions in a row")
    def openings_column(self, row: Host) -> int:
        return row.openings

    @admin.display(description="why")
    def reason_column(self, row: Host) -> str:
        return formats.printable(row.reason)[:120]

    @admin.display(description="why")
    def reason_shown(self, row: Host) -> SafeString:
        return formats.block(row.reason) if row.reason else formats.NOTHING


def breaker_state(row: Any) -> SafeString:
    """Return the state of a host's circuit breaker in an operator's words.

    ``row`` has the instant of reading; None stands for a host that never failed.
    """
    if row is None or row.open_until is None:
        return format_html('<span class="dq-state dq-due">{}</span>', "sending")
    if row.open_until > row.read_at:
        until = formats.moment(row.open_until, f"{row.open_until.astimezone(UTC):%H:%M:%S} UTC")
        return format_html('<span class="dq-state dq-alarm">{}</span> until {}', "suspended", until)
    return format_html('<span class="dq-state dq-expired">{}</span>', "probing")
