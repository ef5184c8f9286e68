"""Operations on messages, fenced by the lease that the operator saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django import forms
from django.contrib.admin.models import DELETION
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.fields import RejectForm
from delayed_queue.admin.operations import Call, Operation, Report, english, lock
from delayed_queue.admin.rows import MAX_BIGINT, RowState, state_of
from delayed_queue.conf import get_settings
from delayed_queue.handlers import storable
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Message
from delayed_queue.observe.overview import handler_of
from delayed_queue.queue.store.finishing import DROPPED, batches_of

CHANGED: Final = _("changed meanwhile")
_NOT_LEASED: Final = _("not leased")
Ids = Sequence[int]


class Seen(NamedTuple):
    """A message as an operator saw it: the fence of operations.

    The lease fences against workers, the time of creation against an offer that replaced the
    message while no lease was involved.
    """

    id: int
    created_ms: int
    lease_id: str | None

    @property
    def token(self) -> str:
        text = f"{self.id}.{self.created_ms}"
        return text if self.lease_id is None else f"{text}.{self.lease_id}"

    @classmethod
    def of(cls, row: Any) -> Seen:
        return cls(row.id, row.created_ms, row.lease_id)

    @classmethod
    def parse(cls, token: str) -> Seen | None:
        """Parse a page's token; None if it is malformed."""
        parts = token.split(".", 2)
        try:
            id_, created_ms = map(int, parts[:2])
        except ValueError:
            return None
        if not 0 < id_ < MAX_BIGINT:
            return None
        return cls(id_, created_ms, parts[2] if len(parts) > 2 else None)


class MessageOperation(Operation):
    """An operation on messages under the lease that was seen."""

    def objection(self, row: Any) -> Any:
        """Return why the operation does not apply to the row; empty if it does."""
        return ""

    def settle(self, rows: list[Any], ids: Ids, call: Call) -> Ids:
        """Change the rows if their lease still holds them; return the ids of the changed.

        They belong to one queue and to one lease, or to none.
        """
        raise NotImplementedError

    def fits(self, row: Any) -> bool:
        return not self.objection(row)

    def rows(self, call: Call, report: Report) -> list[Any]:
        """Lock the rows that are unchanged and that the operation applies to."""
        seen = {each.id: each for each in map(Seen.parse, call.tokens) if each is not None}
        fitting = []
        for row in lock(call, list(seen), report):
            why = self.objection(row) if Seen.of(row) == seen[row.id] else CHANGED
            if why:
                report.leave(why, row.key)
            else:
                fitting.append(row)
        return fitting

    def apply(self, rows: list[Any], call: Call, report: Report) -> Iterator[tuple[Any, Any]]:
        """Change the rows with one statement for each lease."""
        groups: dict[Any, list[Any]] = {}
        for row in rows:
            groups.setdefault((row.kind, row.lease_id), []).append(row)
        for some in groups.values():
            done = set(self.settle(some, [row.id for row in some], call))
            yield from ((row, row.id in done or CHANGED) for row in some)

    def audit(self, row: Any, call: Call) -> str:
        reason, lease = call.options.get("reason"), row.lease_id or "none"
        text = f"{english(self.past)}. Queue {row.kind}, key {row.key!r}, lease {lease}."
        return f"{text} Reason: {reason}" if reason else text


class LeaseOperation(MessageOperation):
    """An operation on leased messages."""

    def objection(self, row: Any) -> Any:
        return _NOT_LEASED if row.lease_id is None else ""


class Release(LeaseOperation):
    name, label, past = "release", _("Release the lease"), _("Released")
    help = _("End the lease and cancel its handler. The message is due again now.")
    permission = "delayed_queue.release_message"
    wakes = ends_lease = True

    def settle(self, rows: list[Any], ids: Ids, call: Call) -> Ids:
        return Message.objects.release(rows[0].lease_id, ids, using=call.using)


class Extend(LeaseOperation):
    name, label, past = "extend", _("Extend the lease"), _("Extended")
    help = _("Extend the lease to a full duration from now. It never becomes shorter.")
    permission = "delayed_queue.extend_message"

    def settle(self, rows: list[Any], ids: Ids, call: Call) -> Ids:
        duration = lease_of(rows[0].kind) // MILLISECOND
        done = Message.objects.extend([rows[0].lease_id], ids, duration, using=call.using)
        return [each.id for each in done]


def lease_of(kind: str) -> timedelta:
    """Return the duration of a lease of the kind: its handler's, else the setting's."""
    handler = handler_of(kind)
    chosen = handler.lease if handler is not None else None
    return get_settings().LEASE_DURATION if chosen is None else chosen


class Deliver(MessageOperation):
    name, label, past = "deliver", _("Deliver now"), _("Made due")
    help = _("Make a scheduled message due at once.")
    permission = "delayed_queue.deliver_message"
    wakes = True

    def objection(self, row: Any) -> Any:
        if row.lease_id is not None:
            return _("leased; release it instead")
        return "" if state_of(row) is RowState.SCHEDULED else _("due already")

    def settle(self, rows: list[Any], ids: Ids, call: Call) -> Ids:
        return Message.objects.release(None, ids, using=call.using)


class Reject(MessageOperation):
    name, label, past = "reject", _("Reject"), _("Rejected")
    help = _("Move the message to the dead letters. It can be redriven from there.")
    permission = "delayed_queue.reject_message"
    warning = _(
        "These messages move to the dead letters and can be redriven from there. A "
        "handler that is running for one of them is cancelled; its result is "
        "ignored."
    )
    ends_lease = True
    form_class = RejectForm
    flag = DELETION

    def form(self, data: Any, call: Call) -> forms.Form:
        reason = _("rejected by %(user)s") % {"user": call.user}
        return RejectForm(data, initial={"reason": reason})

    def settle(self, rows: list[Any], ids: Ids, call: Call) -> Ids:
        reason = storable(call.options["reason"])
        return Message.objects.dead_letter(
            rows[0].lease_id, ids, reason, batches=batches_of(rows), using=call.using
        )


class Drop(MessageOperation):
    name, label, past = "drop", _("Drop"), _("Dropped")
    help = _("Delete the message for good.")
    permission = "delayed_queue.drop_message"
    warning = _(
        "These messages are deleted for good. To keep them, reject them instead. A "
        "handler that is running for one of them is cancelled."
    )
    ends_lease = is_destructive = True
    flag = DELETION

    def settle(self, rows: list[Any], ids: Ids, call: Call) -> Ids:
        return Message.objects.acknowledge(
            rows[0].lease_id, ids, outcome=DROPPED, batches=batches_of(rows), using=call.using
        )


MESSAGE_OPERATIONS: Final[tuple[Operation, ...]] = (
    Release(),
    Extend(),
    Deliver(),
    Reject(),
    Drop(),
)
