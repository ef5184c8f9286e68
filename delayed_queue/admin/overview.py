"""The queues at a glance: one row each, counted no further than a cap."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode

from delayed_queue.admin.filters import KIND
from delayed_queue.admin.formats import human
from delayed_queue.overview import (
    MAX_KINDS,
    QueueDepth,
    cap_for,
    depths,
    find_kinds,
    handler_of,
)

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

    @property
    def query(self) -> str:
        return urlencode({KIND: self.kind})

    @property
    def lateness(self) -> str:
        return "" if self.late_by is None else human(self.late_by)

    @property
    def is_late(self) -> bool:
        return self.late_by is not None and self.late_by > _LATE


def queues_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    using = model_admin.get_queryset(request).db
    kinds, is_cut = find_kinds(using)
    cap = cap_for(len(kinds))
    lines = sorted(map(_line, depths(kinds, cap=cap, using=using)), key=_urgency)
    context = {
        **model_admin.admin_site.each_context(request),
        "title": "Queues",
        "opts": model_admin.opts,
        "media": model_admin.media,
        "lines": lines,
        "cap": f"{cap:,}",
        "is_cut": is_cut,
        "max_kinds": MAX_KINDS,
        "may_view_letters": request.user.has_perm("delayed_queue.view_deadletter"),
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/delayed_queue/queues.html", context)


def _line(depth: QueueDepth) -> QueueLine:
    handler = handler_of(depth.kind)
    return QueueLine(
        kind=depth.kind,
        queue=depth.name.queue,
        codec=depth.name.codec,
        handler="" if handler is None else handler.path,
        due=str(depth.due),
        scheduled=str(depth.scheduled),
        leased=str(depth.leased),
        dead=str(depth.dead),
        has_dead=depth.dead.value > 0,
        late_by=depth.oldest_due_age,
    )


def _urgency(line: QueueLine) -> tuple[bool, timedelta, str]:
    """Sort the latest queue first, queues with nothing due behind, by name."""
    late_by = line.late_by
    return (late_by is None, -(late_by or timedelta(0)), line.kind)
