"""The hosts that callbacks fail at: which are left alone, since when, and why."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.admin.records import RecordAdmin
from delayed_queue.models import Host


@admin.register(Host)
class HostAdmin(RecordAdmin):
    """The latest that failed first; a host that never failed has no row."""

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

    @admin.display(description="breaker")
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

    @admin.display(description="openings")
    def openings_column(self, row: Host) -> int:
        return row.openings

    @admin.display(description="why")
    def reason_column(self, row: Host) -> str:
        return formats.printable(row.reason)[:120]

    @admin.display(description="why")
    def reason_shown(self, row: Host) -> SafeString:
        return formats.block(row.reason) if row.reason else formats.NOTHING


def breaker_state(row: Any) -> SafeString:
    """Return the state of a host's breaker; ``row`` has the instant of reading."""
    if row.open_until is None:
        return format_html('<span class="dq-state dq-due">{}</span>', "closed")
    if row.open_until > row.read_at:
        return format_html('<span class="dq-state dq-alarm">{}</span>', "open")
    return format_html('<span class="dq-state dq-expired">{}</span>', "half open")
