"""The queues at a glance: one row each, counted no further than a cap."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode

from delayed_queue.admin.filters import KIND, MAX_KINDS
from delayed_queue.admin.formats import human, per_second
from delayed_queue.admin.pausing import paused_rows, switch_view
from delayed_queue.admin.rows import handler_of, name_of
from delayed_queue.handlers import registry
from delayed_queue.managers import OverviewRow, ThroughputRow
from delayed_queue.messages import MAX_MILLISECONDS, MILLISECOND
from delayed_queue.models import DeadLetter, Message, Worker
from delayed_queue.workers.heartbeat import ALIVE

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

LEASE_CAP: Final = 10_000
_CAPS: Final = (10_000, 5_000, 2_000, 1_000)
# Of messages counted for one page, over all its queues: with many queues each is counted less far.
_BUDGET: Final = 60_000
_LATE: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue of the overview, in words."""

    kind: str
    queue: str
    codec: str
    handler: str
    due: str
    scheduled: str
    leased: str
    dead: str
    has_dead: bool
    late_by: timedelta | None
    workers: int
    rate: str
    pause: Any

    @property
    def query(self) -> str:
        return urlencode({KIND: self.kind})

    @property
    def lateness(self) -> str:
        return "" if self.late_by is None else human(self.late_by)

    @property
    def is_late(self) -> bool:
        return self.late_by is not None and self.late_by > _LATE

    @property
    def is_unserved(self) -> bool:
        """Return whether messages wait, or will, and no worker has shown itself for them."""
        is_empty = (self.due, self.scheduled, self.leased) == ("0",) * 3
        return self.workers == 0 and self.pause is None and not is_empty

    @property
    def paused_for(self) -> str:
        return "" if self.pause is None else human(self.pause.read_at - self.pause.paused_at)


def queues_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    if request.method == "POST":
        return switch_view(model_admin, request)
    using = model_admin.get_queryset(request).db
    pauses = {row.kind: row for row in paused_rows(model_admin, request)[: MAX_KINDS + 1]}
    kinds, is_cut = _kinds(using, list(pauses))
    cap = overview_cap(len(kinds))
    context = {
        **model_admin.admin_site.each_context(request),
        "title": "Queues",
        "opts": model_admin.opts,
        "media": model_admin.media,
        "lines": _lines(kinds, cap, pauses, using),
        "cap": f"{cap:,}",
        "is_cut": is_cut,
        "max_kinds": MAX_KINDS,
        "may_view_letters": request.user.has_perm("delayed_queue.view_deadletter"),
        "may_view_workers": request.user.has_perm("delayed_queue.view_worker"),
        "may_pause": request.user.has_perm("delayed_queue.pause_queue"),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/delayed_queue/queues.html", context)


def _lines(kinds: list[str], cap: int, pauses: dict[str, Any], using: str) -> list[QueueLine]:
    rows = Message.objects.overview(kinds, cap, lease_cap=LEASE_CAP, using=using)
    summed = Worker.objects.throughput(ALIVE // MILLISECOND, using=using)
    served = {each.queue: each for each in summed}
    return sorted((_line(row, cap, served, pauses.get(row.kind)) for row in rows), key=_urgency)


def overview_cap(queues: int) -> int:
    """Return how far each count of so many queues goes."""
    return next((cap for cap in _CAPS if cap * queues <= _BUDGET), _CAPS[-1])


def _kinds(using: str, paused: list[str]) -> tuple[list[str], bool]:
    """Return the kinds that have anything at all, and whether some are left out."""
    found = [
        *Message.objects.kinds(MAX_KINDS + 1, using=using),
        *DeadLetter.objects.kinds(MAX_KINDS + 1, using=using),
        *(handler.kind for handler in registry),
        *paused,
    ]
    distinct = list(dict.fromkeys(found))
    return distinct[:MAX_KINDS], len(distinct) > MAX_KINDS


def _line(row: OverviewRow, cap: int, served: dict[str, ThroughputRow], pause: Any) -> QueueLine:
    name = name_of(row.kind)
    service = served.get(name.queue, ThroughputRow(name.queue, 0, 0.0))
    handler = handler_of(row.kind)
    return QueueLine(
        kind=row.kind,
        queue=name.queue,
        codec=name.codec,
        handler="" if handler is None else handler.path,
        due=_count(row.due, is_cut=row.due >= cap),
        scheduled=_count(row.scheduled, is_cut=row.read >= cap),
        leased=_count(row.leased, is_cut=row.held >= LEASE_CAP),
        dead=_count(row.dead, is_cut=row.dead >= cap),
        has_dead=row.dead > 0,
        late_by=_span(row.oldest_due_age),
        workers=service.workers,
        rate=per_second(service.rate) if service.workers else "",
        pause=pause,
    )


def _span(milliseconds: int | None) -> timedelta | None:
    # A foreign service may store any 64-bit instant, further back than a timedelta reaches.
    return None if milliseconds is None else min(milliseconds, MAX_MILLISECONDS) * MILLISECOND


def _count(count: int, *, is_cut: bool) -> str:
    return f"{count:,}+" if is_cut else f"{count:,}"


def _urgency(line: QueueLine) -> tuple[bool, timedelta, str]:
    """Sort the latest queue first, queues with nothing due behind, by name."""
    late_by = line.late_by
    return (late_by is None, -(late_by or timedelta(0)), line.kind)
