"""The messages: what is scheduled, due and leased, and what can be done to them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, cast

from django import forms
from django.contrib import admin
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpRequest, HttpResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import KeyedRowAdmin, QueueModelAdmin
from delayed_queue.admin.filters import (
    KIND,
    STATE,
    WORKER,
    KindFilter,
    LeaseFilter,
    StateFilter,
    WorkerFilter,
    chosen_kind,
)
from delayed_queue.admin.formats import human
from delayed_queue.admin.history import history_view
from delayed_queue.admin.lists import Keyset, MessageRow, RowState, state_of
from delayed_queue.admin.operations import (
    Call,
    Entry,
    Operation,
    ReasonForm,
    Report,
    lock,
    record,
    tell_holders,
    wake,
)
from delayed_queue.admin.overview import queues_view
from delayed_queue.admin.workers import HOLDER_LENGTH, holder_of, names_of_holders
from delayed_queue.conf import get_settings
from delayed_queue.handlers import storable
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message, MessageManager, QueueOverview
from delayed_queue.observe.overview import handler_of

CHANGED: Final = _("changed meanwhile")
_MAX_BIGINT: Final = 2**63


class Seen(NamedTuple):
    """A message as an operator saw it, which is all that an operation may act on.

    The lease fences against workers, the time of creation against an offer that replaced the
    message under its key while no lease was involved.
    """

    id: int
    created_ms: int
    lease_id: str | None

    @property
    def token(self) -> str:
        text = f"{self.id}.{self.created_ms}"
        return text if self.lease_id is None else f"{text}.{self.lease_id}"

    @classmethod
    def of(cls, row: MessageRow) -> Seen:
        return cls(row.id, row.created_ms, row.lease_id)

    @classmethod
    def parse(cls, token: str) -> Seen | None:
        """Return what a page's token says; None for what no page has written."""
        parts = token.split(".", 2)
        try:
            id_, created_ms = map(int, parts[:2])
        except ValueError:
            return None
        if not 0 < id_ < _MAX_BIGINT:
            return None
        return cls(id_, created_ms, parts[2] if len(parts) > 2 else None)


class Group(NamedTuple):
    """Messages of one queue under one lease, or under none."""

    kind: str
    lease_id: str | None


class MessageOperation(Operation):
    """An operation on messages under the lease that was seen."""

    flag = CHANGE
    wakes = False
    ends_lease = False

    def refusal(self, row: MessageRow) -> Any:
        """Return why the operation does not apply to the row; empty when it does."""
        return ""

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        """Change those rows, if the lease still holds them; return the ids of the changed."""
        raise NotImplementedError

    def note(self, group: Group) -> str:
        return ""

    def fits(self, row: Any) -> bool:
        return not self.refusal(row)

    def run(self, call: Call) -> Report:
        report = Report(self.past)
        with call.transaction():
            entries: list[Entry] = []
            for group, rows in self._ready(call, report).items():
                done = set(self.apply(group, [row.id for row in rows], call))
                entries += self._settle(group, rows, done, call, report)
            record(call, self.flag, entries)
            if self.wakes:
                wake({entry.row.kind for entry in entries}, call.using)
            if self.ends_lease:
                leases = (entry.row.lease_id for entry in entries)
                tell_holders(set(filter(None, leases)), call.using)
        return report

    def _ready(self, call: Call, report: Report) -> dict[Group, list[MessageRow]]:
        """Lock the rows that still are what was seen and that the operation applies to."""
        parsed = [seen for seen in map(Seen.parse, call.tokens) if seen is not None]
        seen = {each.id: each for each in parsed}
        ready: dict[Group, list[MessageRow]] = {}
        for row in cast("list[MessageRow]", lock(call, list(seen), report)):
            why = self.refusal(row) if Seen.of(row) == seen[row.id] else CHANGED
            if why:
                report.leave(why, row.key)
            else:
                ready.setdefault(Group(row.kind, row.lease_id), []).append(row)
        return ready

    def _settle(
        self, group: Group, rows: list[MessageRow], done: set[int], call: Call, report: Report
    ) -> list[Entry]:
        changed = [row for row in rows if row.id in done]
        report.changed += [row.key for row in changed]
        for row in rows:
            if row.id not in done:
                report.leave(CHANGED, row.key)
        note = self.note(group) if changed else ""
        if note and note not in report.notes:
            report.notes.append(note)
        return [Entry(row, self._audit(row, call)) for row in changed]

    def _audit(self, row: MessageRow, call: Call) -> str:
        reason = call.options.get("reason")
        lease = row.lease_id or "none"
        text = f"{self.recorded}. Queue {row.kind}, key {row.key!r}, lease {lease}."
        return f"{text} Reason: {reason}" if reason else text


def _messages() -> MessageManager[Message]:
    return Message.objects


def _is_leased(row: MessageRow) -> bool:
    return row.lease_id is not None


class Release(MessageOperation):
    name = "release"
    label = _("Release the lease")
    help = _("End the lease and cancel its handler. The message is due again now.")
    permission = "delayed_queue.release_message"
    past = _("Released")
    wakes = True
    ends_lease = True

    def refusal(self, row: MessageRow) -> Any:
        return "" if _is_leased(row) else _("not leased")

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        return _messages().release(group.lease_id, ids, using=call.using)


class Extend(MessageOperation):
    name = "extend"
    label = _("Extend the lease")
    help = _("Extend the lease to a full duration from now. It never becomes shorter.")
    permission = "delayed_queue.extend_message"
    past = _("Extended")

    def refusal(self, row: MessageRow) -> Any:
        return "" if _is_leased(row) else _("not leased")

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        lease = lease_of(group.kind) // MILLISECOND
        rows = _messages().extend([group.lease_id or ""], ids, lease, using=call.using)
        return [row.id for row in rows]

    def note(self, group: Group) -> str:
        return gettext("The leases now last at least %(span)s.") % {
            "span": human(lease_of(group.kind))
        }


def lease_of(kind: str) -> timedelta:
    """Return how long a lease of that kind lasts: its handler's, else the setting's."""
    handler = handler_of(kind)
    chosen = handler.lease if handler is not None else None
    return get_settings().LEASE_DURATION if chosen is None else chosen


class Deliver(MessageOperation):
    name = "deliver"
    label = _("Deliver now")
    help = _("Make a scheduled message due at once.")
    permission = "delayed_queue.deliver_message"
    past = _("Made due")
    wakes = True

    def refusal(self, row: MessageRow) -> Any:
        if _is_leased(row):
            return _("leased; release it instead")
        return "" if state_of(row) is RowState.SCHEDULED else _("due already")

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        return _messages().release(None, ids, using=call.using)


class Reject(MessageOperation):
    name = "reject"
    label = _("Reject")
    help = _("Move the message to the dead letters. It can be redriven from there.")
    permission = "delayed_queue.reject_message"
    warning = _(
        "These messages move to the dead letters and can be redriven from there. A "
        "handler that is running for one of them is cancelled; its result is "
        "ignored."
    )
    ends_lease = True
    form_class = ReasonForm
    past = _("Rejected")
    flag = DELETION

    def form(self, data: Any, username: str) -> forms.Form:
        return ReasonForm(data, initial={"reason": _("rejected by %(user)s") % {"user": username}})

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        reason = storable(call.options["reason"])
        return _messages().dead_letter(group.lease_id, ids, reason, using=call.using)


class Drop(MessageOperation):
    name = "drop"
    label = _("Drop")
    help = _("Delete the message for good.")
    permission = "delayed_queue.drop_message"
    warning = _(
        "These messages are deleted for good. To keep them, reject them instead. A "
        "handler that is running for one of them is cancelled."
    )
    ends_lease = True
    is_destructive = True
    past = _("Dropped")
    flag = DELETION

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        return _messages().acknowledge(group.lease_id, ids, using=call.using)


MESSAGE_OPERATIONS: Final[tuple[Operation, ...]] = (
    Release(),
    Extend(),
    Deliver(),
    Reject(),
    Drop(),
)


_NEXT = {
    RowState.SCHEDULED: _("falls due"),
    RowState.DUE: _("fell due"),
    RowState.LEASED: _("lease ends"),
    RowState.EXPIRED: _("lease ended, so due again"),
}
_NEWEST_FIRST = Keyset(descending=True)
_BY_SCHEDULE = Keyset("scheduled_at", is_partial=True)
_BY_LEASE = Keyset("lease_id", is_text=True)
_BY_KIND = Keyset("kind", is_text=True)


@admin.register(Message)
class MessageAdmin(KeyedRowAdmin):
    """A queue in the order of delivery; all queues, newest first; leases by lease."""

    operations = MESSAGE_OPERATIONS
    list_filter = (KindFilter, StateFilter, LeaseFilter, WorkerFilter)
    list_display = (
        "key_column",
        "queue_column",
        "state_column",
        "when_column",
        "lease_column",
        "attempts_column",
        "age_column",
    )
    readonly_fields = (
        "state",
        "queue",
        "key_shown",
        "lease",
        "attempts_column",
        "times",
        "last_failure",
        "first_failure",
        "headers_shown",
        "payload_shown",
        "dead_letters",
    )

    def keyset_of(self, request: HttpRequest) -> Keyset:
        if request.GET.get("q"):
            return _BY_KIND
        if not {formats.LEASE, WORKER}.isdisjoint(request.GET):
            return _BY_LEASE
        if request.GET.get(STATE) in {RowState.LEASED, RowState.EXPIRED}:
            return _BY_LEASE
        return _NEWEST_FIRST if chosen_kind(request) is None else _BY_SCHEDULE

    def token_of(self, row: MessageRow) -> str:
        return Seen.of(row).token

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        if request.user.has_perm("delayed_queue.view_worker"):
            names = names_of_holders(rows, using)
            for row in rows:
                row.worker = names.get((row.lease_id or "")[:HOLDER_LENGTH], "")

    # Columns

    @admin.display(description=_("state"))
    def state_column(self, row: MessageRow) -> SafeString:
        return formats.badge(state_of(row))

    @admin.display(description=_("when"))
    def when_column(self, row: MessageRow) -> SafeString:
        return formats.waiting(row)

    @admin.display(description=_("lease"))
    def lease_column(self, row: MessageRow) -> SafeString:
        lease = formats.short_lease(row.lease_id)
        worker = getattr(row, "worker", "")
        return format_html("{} {}", lease, formats.quiet(worker)) if worker else lease

    @admin.display(description=_("age"))
    def age_column(self, row: MessageRow) -> SafeString:
        return formats.moment(row.created_at, formats.human(row.read_at - row.created_at))

    # The detail page

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        may_view = request.user.has_perm("delayed_queue.view_worker")
        if row is not None and row.lease_id is not None and may_view:
            row.holder = holder_of(row, self.get_queryset(request).db, self.admin_site.name)
        return row

    @admin.display(description=_("state"))
    def state(self, row: MessageRow) -> SafeString:
        return format_html("{} {}", self.state_column(row), formats.waiting(row))

    @admin.display(description=_("lease id"))
    def lease(self, row: MessageRow) -> SafeString:
        if row.lease_id is None:
            return format_html("{} {}", formats.NOTHING, _("not leased"))
        return format_html("<code>{}</code> {}", row.lease_id, getattr(row, "holder", ""))

    @admin.display(description=_("timeline"))
    def times(self, row: MessageRow) -> SafeString:
        is_moved = row.scheduled_at != row.scheduled_at_initially
        events = [
            (row.created_at, _("offered")),
            (row.scheduled_at_initially if is_moved else None, _("first scheduled for")),
            (row.due_at, _("fell due for the last delivery")),
            (row.scheduled_at, _NEXT[state_of(row)]),
        ]
        return formats.timeline(events, row.read_at)

    @admin.display(description=_("dead letters"))
    def dead_letters(self, row: MessageRow) -> SafeString:
        name, site = "admin:delayed_queue_deadletter_changelist", self.admin_site.name
        url = reverse(name, current_app=site)
        query = urlencode({"q": row.key, KIND: row.kind})
        words = _("Dead letters of this key")
        return format_html('<a href="{}?{}">{}</a>', url, query, words)


@admin.register(QueueOverview)
class QueueOverviewAdmin(KeyedRowAdmin):
    """The overview and the history of a queue, first where the admin lists its pages."""

    list_display = ("key_column",)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm("delayed_queue.view_message"))

    def get_urls(self) -> Any:
        queues, history = map(self.admin_site.admin_view, (self.queues, self.history))
        return [
            path("", queues, name="delayed_queue_queues"),
            path("", queues, name="delayed_queue_queueoverview_changelist"),
            path("history/", history, name="delayed_queue_history"),
        ]

    def queues(self, request: HttpRequest) -> HttpResponse:
        return queues_view(self._of_messages, request)

    def history(self, request: HttpRequest) -> HttpResponse:
        return history_view(self._of_messages, request)

    @property
    def _of_messages(self) -> QueueModelAdmin:
        """The admin of messages on the same site, whose database and permissions count."""
        return cast("QueueModelAdmin", self.admin_site.get_model_admin(Message))
