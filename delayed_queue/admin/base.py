"""Model admins that show rows and offer operations on them, and let nothing be typed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_POPUP_VAR
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.exceptions import PermissionDenied
from django.db import OperationalError
from django.db.models import BinaryField, F, Func, IntegerField, QuerySet, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.filters import KIND, chosen_kind
from delayed_queue.admin.formats import MAX_READ, number, quiet, show_payload
from delayed_queue.admin.lists import (
    LIVE,
    DatabaseClock,
    Keyset,
    KeysetChangeList,
    LetterRow,
    ListAdmin,
    MessageRow,
    as_read,
    find,
    is_id,
)
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.db.resilience import waited_too_long
from delayed_queue.observe.overview import name_of
from delayed_queue.queue.hooks import hooks

ORIGIN: Final = "origin"
CONFIRMED: Final = "confirmed"


class QueueModelAdmin(ListAdmin):
    """Read-only pages of bounded cost, and fenced operations, each with its own permission."""

    operations: tuple[Operation, ...] = ()
    list_per_page = 100
    empty_value_display = "—"
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER  # they count every choice over the whole table
    sortable_by = ()  # only the orders that an index gives
    list_display_links = ("key_column",)
    # Only has the box shown; "=key" of Django's own would be UPPER(key), which no index serves.
    search_fields = ("=key",)
    search_help_text: ClassVar[Any] = _(
        "The whole key, exactly as it was offered. All queues are searched."
    )
    change_list_template = "admin/delayed_queue/keyset_change_list.html"
    change_form_template = "admin/delayed_queue/row_detail.html"

    class Media:
        css = {"all": ["delayed_queue/admin.css"]}
        js = [LIVE]

    # What subclasses say

    def keyset_of(self, request: HttpRequest) -> Keyset:
        """Return the order of the list, one that an index gives under its filters."""
        raise NotImplementedError

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        """Add to the rows of a page what is read from other tables."""

    def token_of(self, row: Any) -> str:
        """Return what an operation is fenced by: the row as it was shown."""
        raise NotImplementedError

    # Reading

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def may_view_payload(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("delayed_queue.view_payload"))

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow the filters only: a lookup typed into the URL could scan, or spell out payloads."""
        return lookup in {each.parameter_name for each in self.list_filter}  # type: ignore[union-attr]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return as_read(super().get_queryset(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        """Return the row with all that its page shows; the payload only if it may be seen."""
        queryset = self.get_queryset(request).defer(None).defer("payload")
        queryset = queryset.annotate(
            payload_size=Func(F("payload"), function="octet_length", output_field=IntegerField())
        )
        if self.may_view_payload(request):
            queryset = queryset.annotate(payload_head=_head_of("payload"))
        row = find(queryset, object_id)
        if row is not None:
            asked = (row.kind, row.key, request, self.admin_site.name)
            row.panels = format_html_join("", "{}", ((panel(*asked),) for panel in hooks.panels))
        return row

    @admin.display(description=_("callbacks"))
    def panels_shown(self, row: Any) -> SafeString:
        panels: SafeString = row.panels
        return panels

    # Not named "payload": Django would show the model's field of that name, to everybody.
    @admin.display(description=_("payload"))
    def payload_shown(self, row: Any) -> SafeString:
        if hasattr(row, "payload_head"):
            return show_payload(row.kind, bytes(row.payload_head), row.payload_size)
        return quiet(
            _("%(size)s bytes, hidden: needs the permission delayed_queue.view_payload.")
            % {"size": number(row.payload_size)}
        )

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        return KeysetChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find a key exactly, forgiving only blanks around it, which come with a copied one."""
        if not search_term:
            return queryset, False
        return queryset.filter(key__in={search_term, search_term.strip()}), False

    def title_of(self, row: Any) -> str:
        """Return the title of the row's own page."""
        return str(row.key)

    def list_title(self, request: HttpRequest) -> str:
        title = capfirst(str(self.opts.verbose_name_plural)) or ""
        kind = chosen_kind(request)
        if request.GET.get(SEARCH_VAR):
            return _("%(title)s with this key") % {"title": title}
        if kind is None:
            return title
        return _("%(title)s of %(queue)s") % {"title": title, "queue": name_of(kind).queue}

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        # Since Django 6.1 it is asked for those of the detail page too, which has its own buttons.
        if IS_POPUP_VAR in request.GET or getattr(action_location, "name", "") == "CHANGE_FORM":
            return {}
        allowed = [each for each in self.operations if self.may(request, each)]
        return {each.name: (each.run, each.name, each.label) for each in allowed}

    def action_checkbox(self, row: Any) -> SafeString:
        """Show the checkbox, whose value says what the operator sees, not only which row."""
        attrs = {"class": "action-select", "aria-label": f"Select {row}"}
        checkbox = forms.CheckboxInput(attrs, lambda value: False)
        return checkbox.render(ACTION_CHECKBOX_NAME, self.token_of(row))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if request.method == "POST":
            return self._operate(request)
        return super().changelist_view(request, extra_context)

    # The detail page

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is not None and getattr(obj, "panels", None):
            return (*self.readonly_fields, "panels_shown")
        return self.readonly_fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*self.readonly_fields, "panels_shown")

    def render_change_form(
        self,
        request: HttpRequest,
        context: Any,
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        allowed = [each for each in self.operations if self.may(request, each) and each.fits(obj)]
        context.update(
            operations=allowed,
            token=self.token_of(obj),
            checkbox_name=ACTION_CHECKBOX_NAME,
            subtitle=None,
            title=self.title_of(obj),
        )
        return super().render_change_form(request, context, add, change, form_url, obj)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        # Ordinary in a queue: a worker was done with it before the operator clicked.
        noun = opts.verbose_name
        text = _("This %(noun)s no longer exists: it was handled, moved or dropped.") % {
            "noun": noun
        }
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._list_url())

    # Operations

    def may(self, request: HttpRequest, operation: Operation) -> bool:
        allowed: bool = request.user.has_perm(operation.permission)
        return allowed and self.has_view_permission(request)

    def _operate(self, request: HttpRequest) -> HttpResponse:
        """Do what was posted, after a confirmation page where the operation asks for one."""
        named = {each.name: each for each in self.operations}
        operation = named.get(request.POST.get("action", ""))
        if not self.has_view_permission(request):
            raise PermissionDenied
        tokens = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if operation is None or not tokens:
            text = _("Choose an action and at least one row. Nothing was changed.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        if not self.may(request, operation):
            raise PermissionDenied
        is_confirmed = CONFIRMED in request.POST
        form = operation.form(request.POST if is_confirmed else None, str(request.user))
        if operation.warning and not form.is_valid():
            return self._confirmation(request, operation, tokens, form)
        options = form.cleaned_data if form.is_valid() else {}
        call = Call(self.get_queryset(request), tokens, request.user, options)
        self.carry_out(request, operation, call)
        return HttpResponseRedirect(self._back_url(request, tokens))

    def carry_out(self, request: HttpRequest, operation: Operation, call: Call) -> None:
        """Run the operation and tell the operator what became of it."""
        try:
            report = operation.run(call)
        except OperationalError as error:
            if not waited_too_long(error):
                raise
            text = _("Nothing was changed: another transaction holds one of the rows. Try again.")
            self.message_user(request, text, messages.ERROR)
        else:
            self._tell(request, report)

    def _tell(self, request: HttpRequest, report: Report) -> None:
        success = report.success()
        if success:
            self.message_user(request, success, messages.SUCCESS)
        for warning in report.warnings():
            self.message_user(request, warning, messages.WARNING)

    def _confirmation(
        self, request: HttpRequest, operation: Operation, tokens: Sequence[str], form: forms.Form
    ) -> HttpResponse:
        shown = {self.token_of(row): row for row in self._rows_of(request, tokens)}
        context = {
            **self.admin_site.each_context(request),
            "title": _("%(label)s: are you sure?") % {"label": operation.label},
            "opts": self.opts,
            "media": self.media,
            "operation": operation,
            "rows": [(token, shown.get(token)) for token in tokens],
            "count": len(set(tokens) & set(shown)),
            "form": form,
            "checkbox_name": ACTION_CHECKBOX_NAME,
            "origin": request.POST.get(ORIGIN, ""),
            "back_url": self._back_url(request, tokens),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/delayed_queue/confirm_operation.html", context)

    def _rows_of(self, request: HttpRequest, tokens: Sequence[str]) -> QuerySet[Any]:
        ids = [token.partition(".")[0] for token in tokens]
        return self.get_queryset(request).filter(id__in=[int(each) for each in ids if is_id(each)])

    def _back_url(self, request: HttpRequest, tokens: Sequence[str]) -> str:
        """Return the page that the operation came from, the list if its row has gone."""
        if request.POST.get(ORIGIN) != "detail":
            return request.get_full_path()
        row = self._rows_of(request, tokens).first()
        if row is None:
            return self._list_url()
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        return reverse(name, args=[row.pk], current_app=self.admin_site.name)

    def _list_url(self, **query: str) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return reverse(name, query=query or None, current_app=self.admin_site.name)


def _head_of(column: str) -> Func:
    return Func(
        F(column), Value(1), Value(MAX_READ), function="substring", output_field=BinaryField()
    )


class KeyedRowAdmin(QueueModelAdmin):
    """Columns and fields of a row that is, or was, a message."""

    @admin.display(description=_("key"))
    def key_column(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.key_label(row.key)

    @admin.display(description=_("queue"))
    def queue_column(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.kind_label(row.kind)

    @admin.display(description=_("attempts"))
    def attempts_column(self, row: MessageRow | LetterRow) -> int:
        return row.attempts

    # The detail page

    @admin.display(description=_("queue"))
    def queue(self, row: MessageRow | LetterRow) -> SafeString:
        url = f"../../?{urlencode({KIND: row.kind})}"
        return format_html('<a href="{}">{}</a>', url, formats.kind_label(row.kind))

    @admin.display(description=_("key"))
    def key_shown(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.key_label(row.key)

    @admin.display(description=_("first error"))
    def first_failure(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.error_block(row.first_error)

    @admin.display(description=_("last error"))
    def last_failure(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.error_block(row.last_error)

    @admin.display(description=_("headers"))
    def headers_shown(self, row: MessageRow | LetterRow) -> SafeString:
        return formats.headers_block(row.headers)


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
