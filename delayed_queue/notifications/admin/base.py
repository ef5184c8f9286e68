"""What the pages share: they show rows, and let nothing be typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from delayed_queue.notifications.models import Status

if TYPE_CHECKING:
    Base = admin.ModelAdmin[Any]
else:
    Base = admin.ModelAdmin  # cannot be subscripted at run time on Django 5.2

APP: Final = "notifications"
MAX_LISTED: Final = 5_000
_CLASSES: Final = {
    Status.ENQUEUED: "dq-scheduled",
    Status.PROCESSING: "dq-leased",
    Status.SUCCESSFULLY_PROCESSED: "dq-due",
    Status.FAILED: "dq-alarm",
    Status.CANCELLED: "dq-scheduled",
    Status.EXPIRED: "dq-expired",
}


class CappedPaginator(Paginator):  # type: ignore[type-arg] # not subscriptable at run time
    """Counts no further than a cap: what lies beyond it is reached by pruning, not by paging."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows[:MAX_LISTED].values_list("pk", flat=True))


class ShownOnly(Base):
    """Read-only pages of bounded cost."""

    list_per_page = 100
    list_max_show_all = 0
    show_full_result_count = False
    paginator = CappedPaginator
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    list_heading = ""

    class Media:
        css = {"all": ["delayed_queue/admin.css", "notifications/pages.css"]}
        js = [forms.Script("delayed_queue/live.js", defer=True)]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:
        """Head the list by what is in it: nothing needs to be selected."""
        heading = {"title": self.list_heading} if self.list_heading else {}
        return super().changelist_view(request, {**heading, **(extra_context or {})})

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters only: a lookup typed into the URL could scan, or spell out texts."""
        return lookup in {getattr(each, "parameter_name", each) for each in self.list_filter}


def may(request: HttpRequest, codename: str) -> bool:
    return bool(request.user.has_perm(f"{APP}.{codename}"))


def badge(status: str) -> SafeString:
    state = Status(status)
    return format_html(
        '<span class="dq-state {}" title="{}">{}</span>', _CLASSES[state], state.value, state.label
    )
