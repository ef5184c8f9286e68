"""Operations as actions of a list and buttons of a page, with a confirmation page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IS_POPUP_VAR
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import link, number, printable
from delayed_queue.admin.lists import ListAdmin
from delayed_queue.admin.operations import Call, Operation, Report, primary_keys
from delayed_queue.exceptions import DelayedQueueError

ORIGIN: Final = "origin"
CONFIRMED: Final = "confirmed"


class OperatingAdmin(ListAdmin):
    """A list whose rows operations change, each with a permission of its own."""

    operations: tuple[Operation, ...] = ()

    def token_of(self, row: Any) -> str:
        """Return what fences an operation on the row: the row as it was shown."""
        return str(row.pk)

    def allows(self, request: HttpRequest, operation: Operation) -> bool:
        return self.may(request, operation.permission) and self.has_view_permission(request)

    def writer(self, request: HttpRequest) -> str:
        """Return the alias that operations write to."""
        return self.get_queryset(request).select_for_update().db

    def offered(self, request: HttpRequest, row: Any = None) -> list[Operation]:
        """Return the operations of the list, or of the page of a row."""
        allowed = [each for each in self.operations if self.allows(request, each)]
        return [each for each in allowed if row is None or each.fits(row)]

    # The list

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        # Django 6.1 also requests actions for the detail page, which has its own buttons.
        if IS_POPUP_VAR in request.GET or getattr(action_location, "name", "") == "CHANGE_FORM":
            return {}
        ours = {each.name: (each.run, each.name, each.label) for each in self.offered(request)}
        return super().get_actions(request) | ours

    def action_checkbox(self, row: Any) -> SafeString:
        """Show the checkbox; its value is the row's token."""
        attrs = {"class": "action-select", "aria-label": f"Select {row}"}
        checkbox = forms.CheckboxInput(attrs, lambda value: False)
        return checkbox.render(ACTION_CHECKBOX_NAME, self.token_of(row))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        is_django = request.POST.get("action") in super().get_actions(request)
        if request.method == "POST" and not is_django:
            return self.operate(request)
        return super().changelist_view(request, extra_context)

    # The page of a row

    def title_of(self, row: Any) -> str:
        return str(row)

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        if (row := kwargs.get("obj")) is not None:
            context.update(
                operations=self.offered(request, row), token=self.token_of(row),
                checkbox_name=ACTION_CHECKBOX_NAME, subtitle=None, title=self.title_of(row),
            )  # fmt: skip
        return super().render_change_form(request, context, *args, **kwargs)

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        """Return to the list: a worker may have handled a message before the click."""
        self.message_user(request, self.gone_text(), messages.WARNING)
        return HttpResponseRedirect(self.list_url())

    def gone_text(self) -> Any:
        text = _("This %(noun)s no longer exists: it was handled, moved or dropped.")
        return text % {"noun": self.opts.verbose_name}

    # Operations

    def operate(self, request: HttpRequest) -> HttpResponse:
        """Run what a list or the page of a row has posted, or ask first."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        named = {each.name: each for each in self.operations}
        operation = named.get(request.POST.get("action", ""))
        tokens = request.POST.getlist(ACTION_CHECKBOX_NAME)
        if operation is None or not tokens:
            text = _("Choose an action and at least one row. Nothing was changed.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        call = Call(self.get_queryset(request), tokens, request.user)
        answer = self.perform(request, operation, call)
        if isinstance(answer, forms.Form):
            return self._confirm_rows(request, operation, call, answer)
        return HttpResponseRedirect(self._back_url(request, call))

    def perform(
        self, request: HttpRequest, operation: Operation, call: Call
    ) -> forms.Form | Report:
        """Run a confirmed operation and report; else return the form to ask with."""
        if not self.allows(request, operation):
            raise PermissionDenied
        is_confirmed = not operation.warning or CONFIRMED in request.POST
        is_filled = not request.POST.keys().isdisjoint(operation.form_class.base_fields)
        form = operation.form(request.POST if is_confirmed or is_filled else None, call)
        if not form.is_valid() or not is_confirmed:
            return form
        try:
            report = operation.run(replace(call, options=form.cleaned_data))
        except DelayedQueueError as error:
            form.add_error(None, printable(str(error)))
            return form
        for level, text in operation.answers(report):
            self.message_user(request, text, level)
        return report

    def press(
        self,
        request: HttpRequest,
        operations: Iterable[Operation],
        rows: QuerySet[Any],
        tokens: Callable[[str], Sequence[str]],
        **shown: Any,
    ) -> HttpResponse:
        """Run the operation whose button a page beside the lists has posted, or ask first.

        The value of the button names the target: ``tokens`` makes the tokens of the call from it.
        """
        operation = next((each for each in operations if each.name in request.POST), None)
        if operation is None:
            raise BadRequest("There is no such operation.")
        value, back = request.POST[operation.name], request.get_full_path()
        call = Call(rows, tokens(value), request.user)
        answer = self.perform(request, operation, call)
        if isinstance(answer, Report):
            return HttpResponseRedirect(operation.next_url(self, answer) or back)
        context = {"back": back, "carried": [(operation.name, value)], **shown}
        return self._confirm(
            request, operation, answer, **context, **operation.confirmation(call, answer)
        )

    def _confirm(
        self, request: HttpRequest, operation: Operation, form: forms.Form, **shown: Any
    ) -> HttpResponse:
        """Return the confirmation page; ``carried`` are fields that it posts again."""
        context = {"operation": operation, "form": form, **shown}
        return self.page(request, "delayed_queue/confirm", context)

    def _confirm_rows(
        self, request: HttpRequest, operation: Operation, call: Call, form: forms.Form
    ) -> HttpResponse:
        tokens = set(call.tokens)
        rows = [row for row in self.rows_of(call) if self.token_of(row) in tokens]
        count = len(rows)
        name = self.opts.verbose_name if count == 1 else self.opts.verbose_name_plural
        return self._confirm(
            request, operation, form,
            title=_("%(label)s: are you sure?") % {"label": operation.label},
            button=f"{operation.label} {number(count)} {name}" if count else "",
            rows=[(getattr(row, "key", row), row) for row in rows],
            carried=[(ACTION_CHECKBOX_NAME, token) for token in call.tokens]
            + [("action", operation.name), (ORIGIN, request.POST.get(ORIGIN, ""))],
            above=link(self.list_url(), capfirst(self.opts.verbose_name_plural)),
            back=self._back_url(request, call),
        )  # fmt: skip

    def rows_of(self, call: Call) -> QuerySet[Any]:
        """Return the rows of the tokens as they are now."""
        return call.queryset.filter(pk__in=primary_keys(call))

    def _back_url(self, request: HttpRequest, call: Call) -> str:
        """Return the page that the operation came from; the list if its row has gone."""
        if request.POST.get(ORIGIN) != "detail":
            return request.get_full_path()
        row = self.rows_of(call).first()
        return self.list_url() if row is None else self.url(f"{self._name}_change", row.pk)

    def list_url(self, **query: str) -> str:
        return self.url(f"{self._name}_changelist", **query)

    @property
    def _name(self) -> str:
        return f"{self.opts.app_label}_{self.opts.model_name}"
