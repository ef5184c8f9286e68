"""Pausing and resuming a queue."""

from __future__ import annotations

from typing import Any, Final

from django.db.models import F, QuerySet
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.fields import PauseForm
from delayed_queue.admin.formats import human
from delayed_queue.admin.operations import QUEUES, Call, Operation, Report, parse_ids
from delayed_queue.admin.rows import DatabaseClock
from delayed_queue.handlers import storable
from delayed_queue.models import Limit
from delayed_queue.observe.overview import name_of

PAUSE_QUEUE: Final = "delayed_queue.pause_queue"


class QueueOperation(Operation):
    """An operation on one queue of the overview."""

    permission = PAUSE_QUEUE
    noun = QUEUES

    def name_of(self, row: Any) -> str:
        return name_of(row.kind).queue

    def target(self, call: Call) -> str:
        """Return the kind of the queue; empty if the token no longer names one."""
        return call.tokens[0]

    def confirmation(self, call: Call, form: Any) -> dict[str, Any]:
        kind = self.target(call)
        title = f"{self.label} {name_of(kind).queue}" if kind else ""
        pause = call.queryset.filter(kind=kind).first()
        return {
            "title": f"{title or self.label}?", "button": title, "paused": pause_of(pause),
            "queue": kind and name_of(kind),
        }  # fmt: skip


class Pause(QueueOperation):
    """Pauses a queue; the token is its kind."""

    name, label, past = "pause", _("Pause"), _("Paused")
    warning = _(
        "No process gets a message of this queue until it is resumed. Takes effect "
        "at once. Offers are still accepted, and messages in flight are finished."
    )
    form_class = PauseForm

    def rows(self, call: Call, report: Report) -> list[Any]:
        return [Limit(kind=call.tokens[0])]

    def change(self, row: Any, call: Call, report: Report) -> Any:
        reason, by = storable(call.options["reason"]), call.user.get_username()
        if not Limit.objects.pause(row.kind, reason=reason, by=by, using=call.using):
            return _("paused already")
        row.pk = call.written.get(kind=row.kind).pk
        return True

    def audit(self, row: Any, call: Call) -> str:
        reason = storable(call.options["reason"])
        return f"Paused. Queue {row.kind}." + (f" Reason: {reason}" if reason else "")


class Resume(QueueOperation):
    """Resumes a queue; the token is the pause that was seen, so that a later one stays."""

    name, label, past = "resume", _("Resume"), _("Resumed")
    warning = _(
        "Its messages are delivered again. Those that fell due meanwhile are delivered at once."
    )
    wakes = True

    def target(self, call: Call) -> str:
        rows = call.queryset.filter(id__in=parse_ids(call.tokens))
        return next(iter(rows.values_list("kind", flat=True)), "")

    def change(self, row: Any, call: Call, report: Report) -> Any:
        Limit.objects.resume(row.kind, using=call.using)
        return True

    def audit(self, row: Any, call: Call) -> str:
        return f"Resumed. Queue {row.kind}."


SWITCHES: Final = (Pause(), Resume())


def paused_rows(using: str) -> QuerySet[Any]:
    """Return the paused queues with the instant of reading."""
    rows = Limit.objects.paused(using).order_by("kind")
    return rows.annotate(read_at=DatabaseClock(), key=F("kind"))


def pause_of(row: Any) -> str:
    """Return for how long a queue is paused, by whom and why."""
    if row is None:
        return ""
    said = str(_("for %(span)s") % {"span": human(row.read_at - row.paused_at)})
    if row.paused_by:
        said += f" {_('by %(by)s') % {'by': row.paused_by}}"
    return f"{said}: {row.reason}" if row.reason else said
