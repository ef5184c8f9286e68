"""What is dead, by its cause: a line for each queue and failure, and what is done to all of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.http import urlencode

from delayed_queue.admin import formats
from delayed_queue.admin.filters import GROUP, KIND, chosen_kind
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import DeadLetter
from delayed_queue.observe.overview import KindName, name_of
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.store.dead_letters import GROUP_CAP, MAX_GROUPS, GroupRow

if TYPE_CHECKING:
    from delayed_queue.admin.base import QueueModelAdmin

SHOWN: Final = 25


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A failure of a queue, in words."""

    row: GroupRow
    read_at: datetime

    @property
    def name(self) -> KindName:
        return name_of(self.row.kind)

    @property
    def title(self) -> str:
        return formats.printable(describe(self.row.reason, self.row.error))

    @property
    def count(self) -> str:
        return counted(self.row.letters)

    @property
    def first(self) -> Any:
        return self._moment(self.row.first_at)

    @property
    def last(self) -> Any:
        return self._moment(self.row.last_at)

    def _moment(self, instant: int) -> Any:
        at = from_milliseconds(instant)
        return formats.moment(at, formats.relative(at, self.read_at))

    @property
    def query(self) -> str:
        return urlencode({KIND: self.row.kind, GROUP: self.row.fingerprint})


def counted(count: int) -> str:
    """Return a count of letters, with a plus where counting stopped."""
    return f"{count:,}" if count < GROUP_CAP else f"{GROUP_CAP - 1:,}+"


def failures_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    using = model_admin.get_queryset(request).db
    rows = DeadLetter.objects.groups(chosen_kind(request), shown=SHOWN, using=using)
    found, now = rows[0].groups if rows else 0, timezone.now()
    context = {
        **model_admin.admin_site.each_context(request),
        "title": "Failures",
        "opts": model_admin.opts,
        "media": model_admin.media,
        "lines": [GroupLine(row, now) for row in rows],
        "hidden": max(found - SHOWN, 0),
        "is_cut": found == MAX_GROUPS,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/delayed_queue/failures.html", context)
