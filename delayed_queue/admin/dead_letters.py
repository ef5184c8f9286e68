"""The dead letters: what was given up on, why, and the way back."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db import router
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import KeyedRowAdmin
from delayed_queue.admin.failures import failures_view
from delayed_queue.admin.filters import KIND, DiedFilter, GroupFilter, KindFilter, chosen_kind
from delayed_queue.admin.lists import Keyset, LetterRow
from delayed_queue.admin.operations import (
    LETTERS,
    Call,
    Entry,
    Operation,
    Report,
    english,
    lock,
    parse_ids,
    record,
    wake,
)
from delayed_queue.models import DeadLetter, Message
from delayed_queue.queue.store.dead_letters import DeadLetterManager

ALIVE: Final = _("because a message has their key, or a newer dead letter of the key was redriven")
_OUTCOMES: Final = {True: _("created"), False: _("overwritten")}


def _letters() -> DeadLetterManager[DeadLetter]:
    return DeadLetter.objects


class Redrive(Operation):
    name = "redrive"
    label = _("Redrive")
    help = _(
        "Offer the dead letter again, due now, as a first attempt. A message that "
        "has its key is not replaced. If the group is still blocked then, resume "
        "the group."
    )
    permission = "delayed_queue.redrive_deadletter"
    overwrites = False

    def run(self, call: Call) -> Report:
        report = Report(_("Redriven"), LETTERS)
        with call.transaction():
            ids = parse_ids(call.tokens)
            # Before the letters: who deletes a job locks it first, then its letters.
            _letters().hold_jobs(ids, using=call.using)
            rows = cast("list[LetterRow]", lock(call, ids, report))
            answers = _letters().redrive(
                [row.id for row in rows], overwrite=self.overwrites, using=call.using
            )
            created = {each.id: each.created for each in answers if each.created is not None}
            entries = []
            for row in rows:
                if row.id not in created:
                    report.leave(ALIVE, row.key)
                    continue
                outcome = _OUTCOMES[created[row.id]]
                report.changed.append(f"{row.key} ({outcome})")
                entries.append(Entry(row, f"Redriven, {english(outcome)}. {_identity(row)}"))
            record(call, DELETION, entries)
            wake({entry.row.kind for entry in entries}, call.using)
        return report


class Overwrite(Redrive):
    name = "overwrite"
    label = _("Redrive, overwriting")
    help = _("Offer the dead letter again even if a message has its key; that message is replaced.")
    warning = _(
        "A message that has the key of one of these dead letters is replaced: its "
        "payload and schedule are lost, and its lease ends."
    )
    overwrites = True


class DropLetter(Operation):
    name = "drop"
    label = _("Drop")
    help = _("Delete the dead letter for good.")
    permission = "delayed_queue.drop_deadletter"
    warning = _("These dead letters are deleted for good, with their payloads and errors.")
    is_destructive = True

    def run(self, call: Call) -> Report:
        report = Report(_("Dropped"), LETTERS)
        with call.transaction():
            rows = cast("list[LetterRow]", lock(call, parse_ids(call.tokens), report))
            _letters().drop([row.id for row in rows], using=call.using)
            report.changed += [row.key for row in rows]
            record(call, DELETION, [Entry(row, f"Dropped. {_identity(row)}") for row in rows])
        return report


def _identity(row: LetterRow) -> str:
    return f"Queue {row.kind}, key {row.key!r}."


LETTER_OPERATIONS: Final[tuple[Operation, ...]] = (Redrive(), Overwrite(), DropLetter())


_NEWEST_FIRST = Keyset(descending=True)
_BY_DEATH = Keyset("died_at", descending=True)
_OF_ONE_KEY = Keyset(descending=True, hides_index=True)


@admin.register(DeadLetter)
class DeadLetterAdmin(KeyedRowAdmin):
    """The latest deaths first."""

    operations = LETTER_OPERATIONS
    list_filter = (KindFilter, DiedFilter, GroupFilter)
    list_display = ("key_column", "queue_column", "reason_column", "attempts_column", "died_column")
    readonly_fields = (
        "reason_shown",
        "queue",
        "key_shown",
        "active",
        "attempts_column",
        "times",
        "last_failure",
        "first_failure",
        "headers_shown",
        "payload_shown",
    )

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(partial(failures_view, self))
        return [path("failures/", view, name="delayed_queue_failures"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        url = reverse("admin:delayed_queue_failures", current_app=self.admin_site.name)
        kind = chosen_kind(request)
        query = "" if kind is None else "?" + urlencode({KIND: kind})
        shown = {**(extra_context or {}), "failures_url": url + query}
        return super().changelist_view(request, shown)

    def keyset_of(self, request: HttpRequest) -> Keyset:
        if request.GET.get("q"):
            return _OF_ONE_KEY
        return _NEWEST_FIRST if chosen_kind(request) is None else _BY_DEATH

    def token_of(self, row: LetterRow) -> str:
        return str(row.id)

    # Columns

    @admin.display(description=_("reason"))
    def reason_column(self, row: LetterRow) -> str:
        return Truncator(formats.printable(row.reason)).chars(120)

    @admin.display(description=_("died"))
    def died_column(self, row: LetterRow) -> SafeString:
        return formats.moment(row.died_at, formats.relative(row.died_at, row.read_at))

    # The detail page

    @admin.display(description=_("reason"))
    def reason_shown(self, row: LetterRow) -> SafeString:
        return format_html(
            "<strong>{}</strong>", formats.printable(row.reason[: formats.MAX_SHOWN])
        )

    @admin.display(description=_("key in use"))
    def active(self, row: LetterRow) -> SafeString:
        """Say whether a redrive would find the key taken."""
        messages = Message.objects.using(router.db_for_read(Message, instance=row))
        message = messages.filter(key=row.key, kind=row.kind).only("id").first()
        if message is None:
            return format_html("{}", _("no message has this key now"))
        name, site = "admin:delayed_queue_message_change", self.admin_site.name
        url = reverse(name, args=[message.id], current_app=site)
        return format_html('<a href="{}">{}</a>', url, _("yes, a message has this key"))

    @admin.display(description=_("timeline"))
    def times(self, row: LetterRow) -> SafeString:
        events: list[tuple[datetime | None, Any]] = [
            (row.created_at, _("offered")),
            (row.scheduled_at_initially, _("first scheduled for")),
            (row.died_at, _("died")),
        ]
        return formats.timeline(events, row.read_at)
