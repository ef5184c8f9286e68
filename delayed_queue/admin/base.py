"""Model admins of tables whose lists are read by an index, page by page."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import BinaryField, F, Func, IntegerField, QuerySet, Value
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.filters import KIND, chosen_kind
from delayed_queue.admin.formats import MAX_READ, column, number, quiet, show_payload
from delayed_queue.admin.lists import NEWEST_FIRST, Keyset
from delayed_queue.admin.operating import OperatingAdmin
from delayed_queue.admin.operations import Call, parse_ids
from delayed_queue.admin.rows import as_read, find
from delayed_queue.admin.searching import Search, Term, search_of
from delayed_queue.observe.overview import name_of
from delayed_queue.queue.hooks import hooks


class QueueModelAdmin(OperatingAdmin):
    """Read-only pages of bounded cost, found by key, with fenced operations."""

    list_display_links: Any = ("key_column",)
    # Shows the search box only: Django's "=key" means UPPER(key), which no index serves.
    search_fields: ClassVar[Any] = ("=key",)
    search_help_text: ClassVar[Any] = _(
        "The whole key, exactly as it was offered. All queues are searched."
    )
    change_form_template = "admin/delayed_queue/row_detail.html"

    # The words of the search box; without any it finds a whole key.
    terms: ClassVar[dict[str, Term]] = {}
    key_column = column(_("key"), lambda row: formats.key_label(row.key))
    queue_column = column(_("queue"), lambda row: formats.kind_label(row.kind))

    def listed_by(self, request: HttpRequest) -> Keyset:
        """Return the order of the list without a search."""
        return NEWEST_FIRST

    def keyset_of(self, request: HttpRequest) -> Keyset:
        search = self.search_in(request)
        return (search and search.term.keyset) or self.listed_by(request)

    def search_in(self, request: HttpRequest) -> Search | None:
        return search_of(self.terms, request.GET.get(SEARCH_VAR, ""), chosen_kind(request))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find what a word of ``terms`` finds; else a whole key, also with blanks around it."""
        if search := self.search_in(request):
            return search.found(queryset), False
        if not search_term:
            return queryset, False
        return queryset.filter(key__in={search_term, search_term.strip()}), False

    def title_of(self, row: Any) -> str:
        return str(row.key)

    def list_title(self, request: HttpRequest) -> str:
        title, kind = super().list_title(request), chosen_kind(request)
        if kind is not None:
            title = _("%(title)s of %(queue)s") % {"title": title, "queue": name_of(kind).queue}
        search = request.GET.get(SEARCH_VAR)
        return f"{title}: {search}" if search else title

    def rows_of(self, call: Call) -> QuerySet[Any]:
        return call.queryset.filter(id__in=parse_ids(t.partition(".")[0] for t in call.tokens))


class KeyedRowAdmin(QueueModelAdmin):
    """Columns and fields of a row that is, or was, a message."""

    attempts_column = column(_("attempts"), "attempts")
    queue = column(
        _("queue"),
        lambda row: formats.link(
            f"../../?{urlencode({KIND: row.kind})}", formats.kind_label(row.kind)
        ),
    )
    first_failure = column(_("first error"), lambda row: formats.error_block(row.first_error))
    last_failure = column(_("last error"), lambda row: formats.error_block(row.last_error))
    headers_shown = column(_("headers"), lambda row: formats.headers_block(row.headers))
    panels_shown = column(_("callbacks"), "panels")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return as_read(super().get_queryset(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row with the columns of its page; the payload only with its permission."""
        queryset = self.get_queryset(request).defer(None).defer("payload")
        queryset = queryset.annotate(
            payload_size=Func(F("payload"), function="octet_length", output_field=IntegerField())
        )
        if self.may(request, "delayed_queue.view_payload"):
            queryset = queryset.annotate(payload_head=_head_of("payload"))
        row = find(queryset, object_id)
        if row is not None:
            about = (row.kind, row.key, request, self.admin_site.name)
            row.panels = format_html_join("", "{}", ((panel(*about),) for panel in hooks.panels))
        return row

    # Not named "payload": Django would show the model's field of that name to every user.
    @admin.display(description=_("payload"))
    def payload_shown(self, row: Any) -> SafeString:
        if hasattr(row, "payload_head"):
            return show_payload(row.kind, bytes(row.payload_head), row.payload_size)
        return quiet(
            _("%(size)s bytes, hidden: needs the permission delayed_queue.view_payload.")
            % {"size": number(row.payload_size)}
        )

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, *(["panels_shown"] if getattr(obj, "panels", "") else []))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "panels_shown")


def _head_of(column: str) -> Func:
    return Func(
        F(column), Value(1), Value(MAX_READ), function="substring", output_field=BinaryField()
    )


class RecordAdmin(QueueModelAdmin):
    """Pages of a table whose rows have a name in ``name_field``; the newest first."""

    name_field = "name"
    search_fields: ClassVar[Any] = ()

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found = super().get_queryset(request)
        return found if self.name_field == "key" else found.annotate(key=F(self.name_field))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        queryset = self.get_queryset(request)
        row = find(queryset, object_id)
        if row is not None:
            self.complete(request, [row], queryset.db)
        return row


class MadeByForm(RecordAdmin):
    """Records that a form adds, and then shows read-only."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may(request, f"{self.opts.app_label}.add_{self.opts.model_name}")
