"""The dead letters: what was given up on, why, and the way back."""

from __future__ import annotations

from datetime import datetime

from django.contrib import admin
from django.db import router
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator

from delayed_queue.admin import formats
from delayed_queue.admin.filters import DiedFilter, KindFilter, chosen_kind
from delayed_queue.admin.keyed import KeyedRowAdmin
from delayed_queue.admin.keysets import Keyset
from delayed_queue.admin.letter_operations import LETTER_OPERATIONS
from delayed_queue.admin.rows import LetterRow
from delayed_queue.models import DeadLetter, Message

_NEWEST_FIRST = Keyset(descending=True)
_BY_DEATH = Keyset("died_at", descending=True)
_OF_ONE_KEY = Keyset(descending=True, hides_index=True)


@admin.register(DeadLetter)
class DeadLetterAdmin(KeyedRowAdmin):
    """The latest deaths first."""

    operations = LETTER_OPERATIONS
    list_filter = (KindFilter, DiedFilter)
    list_display = ("key_column", "queue_column", "reason_column", "attempts_column", "died_column")
    readonly_fields = (
        "reason_shown",
        "queue",
        "key_shown",
        "living",
        "attempts_column",
        "times",
        "last_failure",
        "first_failure",
        "headers_shown",
        "payload_shown",
    )

    def keyset_of(self, request: HttpRequest) -> Keyset:
        if request.GET.get("q"):
            return _OF_ONE_KEY
        return _NEWEST_FIRST if chosen_kind(request) is None else _BY_DEATH

    def token_of(self, row: LetterRow) -> str:
        return str(row.id)

    # Columns

    @admin.display(description="reason")
    def reason_column(self, row: LetterRow) -> str:
        return Truncator(formats.printable(row.reason)).chars(120)

    @admin.display(description="died")
    def died_column(self, row: LetterRow) -> SafeString:
        return formats.moment(row.died_at, formats.relative(row.died_at, row.read_at))

    # The detail page

    @admin.display(description="reason")
    def reason_shown(self, row: LetterRow) -> SafeString:
        return format_html(
            "<strong>{}</strong>", formats.printable(row.reason[: formats.MAX_SHOWN])
        )

    @admin.display(description="lives again")
    def living(self, row: LetterRow) -> SafeString:
        """Say whether a redrive would find the key taken."""
        messages = Message.objects.using(router.db_for_read(Message, instance=row))
        message = messages.filter(key=row.key, kind=row.kind).only("id").first()
        if message is None:
            return format_html("{}", "no message has this key now")
        name, site = "admin:delayed_queue_message_change", self.admin_site.name
        url = reverse(name, args=[message.id], current_app=site)
        return format_html('yes, <a href="{}">a message has this key</a>', url)

    @admin.display(description="timeline")
    def times(self, row: LetterRow) -> SafeString:
        events: list[tuple[datetime | None, str]] = [
            (row.created_at, "offered"),
            (row.scheduled_at_initially, "first scheduled for"),
            (row.died_at, "died"),
        ]
        return formats.timeline(events, row.read_at)
