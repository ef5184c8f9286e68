"""A model admin of rows that are no messages: few, named, without a payload."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse

from delayed_queue.admin.base import QueueModelAdmin
from delayed_queue.admin.keysets import Keyset
from delayed_queue.admin.rows import DatabaseClock, find

_NEWEST_FIRST: Final = Keyset(descending=True)


class RecordAdmin(QueueModelAdmin):
    """Pages of a table whose rows have a name in ``name_field``; the newest first."""

    name_field = "name"
    list_filter: ClassVar[tuple[Any, ...]] = ()
    search_fields: ClassVar[tuple[str, ...]] = ()  # type: ignore[assignment]

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return _NEWEST_FIRST

    def token_of(self, row: Any) -> str:
        return str(row.id)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found: QuerySet[Any] = admin.ModelAdmin.get_queryset(self, request)
        annotated: QuerySet[Any] = found.annotate(read_at=DatabaseClock())
        return annotated.annotate(key=F(self.name_field)) if self.name_field != "key" else annotated

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        return find(self.get_queryset(request), object_id)


class WithForm(QueueModelAdmin):
    """Rows that an operator makes: a form to add one, then pages like the others'.

    The template has the buttons of the form where there is one, those of operations elsewhere.
    """

    change_list_template = "admin/delayed_queue/schedule_list.html"
    change_form_template = "admin/delayed_queue/schedule_detail.html"

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        if obj is not None:
            return super().render_change_form(request, context, add, change, form_url, obj)
        return admin.ModelAdmin.render_change_form(
            self, request, context, add, change, form_url, obj
        )


class MadeByForm(WithForm, RecordAdmin):
    """Records that an operator makes, and that no form changes any more."""

    add_fields: tuple[str, ...] = ()

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        name = f"{self.opts.app_label}.add_{self.opts.model_name}"
        return bool(request.user.has_perm(name))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return self.add_fields if obj is None else self.readonly_fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return () if obj is None else self.readonly_fields
