"""The queues at a glance: one row each, counted no further than a cap."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode

from delayed_queue.admin.filters import KIND
from delayed_queue.admin.formats import dotted, human, per_second
from delayed_queue.admin.pausing import paused_rows, switch_view
from delayed_queue.messages import MILLISECOND
from delayed_queue.models import Worker
from delayed_queue.observe.overview import (
    MAX_KINDS,
    QueueDepth,
    cap_for,
    depths,
    find_kinds,
    handler_of,
)
from delayed_queue.worker.heartbeat import ALIVE
from delayed_queue.worker.store import ThroughputRow

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

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
    kinds, is_cut = find_kinds(using, also=list(pauses))
    cap = cap_for(len(kinds))
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
    found = depths(kinds, cap=cap, using=using)
    summed = Worker.objects.throughput(ALIVE // MILLISECOND, using=using)
    served = {each.queue: each for each in summed}
    return sorted((_line(each, served, pauses.get(each.kind)) for each in found), key=_urgency)


def _line(depth: QueueDepth, served: dict[str, ThroughputRow], pause: Any) -> QueueLine:
    service = served.get(depth.name.queue, ThroughputRow(depth.name.queue, 0, 0.0))
    handler = handler_of(depth.kind)
    return QueueLine(
        kind=depth.kind,
        queue=depth.name.queue,
        codec=depth.name.codec,
        handler="" if handler is None else dotted(handler.path),
        due=str(depth.due),
        scheduled=str(depth.scheduled),
        leased=str(depth.leased),
        dead=str(depth.dead),
        has_dead=depth.dead.value > 0,
        late_by=depth.oldest_due_age,
        workers=service.workers,
        rate=per_second(service.rate) if service.workers else "",
        pause=pause,
    )


def _urgency(line: QueueLine) -> tuple[bool, timedelta, str]:
    """Sort the latest queue first, queues with nothing due behind, by name."""
    late_by = line.late_by
    return (late_by is None, -(late_by or timedelta(0)), line.kind)
