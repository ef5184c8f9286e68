"""The dead letters: their reasons, and redriving or dropping them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db import router
from django.http import HttpRequest
from django.urls import path
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import filters, formats, searching
from delayed_queue.admin.base import KeyedRowAdmin
from delayed_queue.admin.failures import failures_view
from delayed_queue.admin.formats import column, time_column
from delayed_queue.admin.lists import NEWEST_FIRST, Keyset
from delayed_queue.admin.operations import Call, Operation, Report, english, lock, parse_ids
from delayed_queue.admin.workers import names_of_holders
from delayed_queue.models import DeadLetter, Worker

_ALIVE: Final = _("because a message has their key, or a newer dead letter of the key was redriven")
_BY_DEATH: Final = Keyset("died_at", descending=True)
_OF_ONE_KEY: Final = Keyset(descending=True, hides_index=True)


class LetterOperation(Operation):
    """An operation that removes dead letters; their id is the fence, as they never change."""

    noun = ngettext_lazy("%(count)s dead letter", "%(count)s dead letters", "count")
    flag = DELETION

    def audit(self, row: Any, call: Call) -> str:
        return f"{english(self.past)}. Queue {row.kind}, key {row.key!r}."


class Redrive(LetterOperation):
    name, label, past = "redrive", _("Redrive"), _("Redriven")
    help = _(
        "Offer the dead letter again, due now, as a first attempt. A message that "
        "has its key is not replaced. If the group is still blocked then, resume "
        "the group."
    )
    permission = "delayed_queue.redrive_deadletter"
    wakes = True

    def rows(self, call: Call, report: Report) -> list[Any]:
        """Lock the jobs, then their letters: the order in which a job is deleted."""
        ids = parse_ids(call.tokens)
        DeadLetter.objects.hold_jobs(ids, using=call.using)
        return lock(call, ids, report)

    def apply(self, rows: list[Any], call: Call, report: Report) -> Iterator[tuple[Any, Any]]:
        answers = DeadLetter.objects.redrive([row.id for row in rows], using=call.using)
        done = {each.id for each in answers if each.created}
        yield from ((row, row.id in done or _ALIVE) for row in rows)


class DropLetter(LetterOperation):
    name, label, past = "drop", _("Drop"), _("Dropped")
    help = _("Delete the dead letter for good.")
    permission = "delayed_queue.drop_deadletter"
    warning = _("These dead letters are deleted for good, with their payloads and errors.")
    is_destructive = True

    def apply(self, rows: list[Any], call: Call, report: Report) -> Iterator[tuple[Any, Any]]:
        DeadLetter.objects.drop([row.id for row in rows], using=call.using)
        yield from ((row, True) for row in rows)


@admin.register(DeadLetter)
class DeadLetterAdmin(KeyedRowAdmin):
    """The latest deaths first."""

    operations = (Redrive(), DropLetter())
    terms: ClassVar = {
        "": searching.PREFIX, "key": searching.whole_key(_OF_ONE_KEY),
        "group": searching.of_group(_BY_DEATH), "header": searching.HEADER,
        "worker": searching.LAST_WORKER, "reason": searching.with_text("reason"),
        "failure": searching.with_text("fingerprint", "reason", "last_error"),
    }  # fmt: skip
    search_help_text = _(
        "The beginning of a key; or group:, worker:, reason:, failure: or header:name= before a "
        "value."
    )
    list_filter = (filters.KindFilter, filters.FailureFilter)
    list_display = ("key_column", "queue_column", "reason_column", "attempts_column", "died_column")
    readonly_fields = (
        "reason_shown", "queue", "key_column", "last_worker", "attempts_column", "times",
        "last_failure", "first_failure", "headers_shown", "payload_shown",
    )  # fmt: skip

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(partial(failures_view, self))
        return [path("failures/", view, name="delayed_queue_failures"), *super().get_urls()]

    def listed_by(self, request: HttpRequest) -> Keyset:
        return NEWEST_FIRST if filters.chosen_kind(request) is None else _BY_DEATH

    reason_column = column(
        _("reason"), lambda row: Truncator(formats.printable(row.reason)).chars(120)
    )
    died_column = time_column(_("died"), "died_at")
    reason_shown = column(
        _("reason"),
        lambda row: format_html(
            "<strong>{}</strong>", formats.printable(row.reason[: formats.MAX_SHOWN])
        ),
    )

    @admin.display(description=_("last worker"))
    def last_worker(self, row: Any) -> Any:
        """Return the worker of the last lease, by the lease's id once its row is gone."""
        names = names_of_holders([row], router.db_for_read(Worker, instance=row))
        holder = (row.lease_id or "")[: searching.HOLDER_LENGTH]
        return names.get(holder) or row.lease_id or formats.NOTHING

    @admin.display(description=_("timeline"))
    def times(self, row: Any) -> SafeString:
        events: list[tuple[datetime | None, Any]] = [
            (row.created_at, _("offered")),
            (row.scheduled_at_initially, _("first scheduled for")),
            (row.died_at, _("died")),
        ]
        return formats.timeline(events, row.read_at)
