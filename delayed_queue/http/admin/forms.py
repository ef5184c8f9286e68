"""Forms that store what they validate, and the pages of records that such forms make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.contrib import messages
from django.db import router
from django.http import HttpRequest
from django.utils.html import format_html

from delayed_queue.admin.base import MadeByForm
from delayed_queue.admin.fields import field_errors

if TYPE_CHECKING:
    _Form = forms.ModelForm[Any]
else:
    _Form = forms.ModelForm  # cannot be subscripted at run time on Django 5.2


class StoringForm(_Form):
    """A form that stores its record as the last step of validation: only that finds all errors.

    ``secret`` is shown once.
    """

    error_field: ClassVar[str | None] = None
    stored: Any
    secret = ""

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc] # Django's hook of the same name
        if not self.errors:
            using = router.db_for_write(self._meta.model, instance=self.instance)
            with field_errors(self, self.error_field):
                self.stored = self.store(self.cleaned_data, using)

    def store(self, cleaned: dict[str, Any], using: str) -> Any:
        """Store the record and return it."""
        raise NotImplementedError


class StoredByForm(MadeByForm):
    """Records of a StoringForm; with ``may_change``, the form changes them, except for the name."""

    may_change = True
    secret_text: Any = ""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        permission = f"{self.opts.app_label}.change_{self.opts.model_name}"
        return self.may_change and self.may(request, permission)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None or not self.may_change:
            return super().get_fields(request, obj)
        return (*self.get_readonly_fields(request, obj), *self.add_fields[1:])

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        found = super().get_readonly_fields(request, obj)
        return (self.name_field, *found) if obj is not None and self.may_change else found

    def save_form(self, request: HttpRequest, form: Any, change: bool) -> Any:
        form.save(commit=False)
        return form.stored

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Show the secret; the form has stored the record."""
        if form.secret:
            self.message_user(request, format_html(self.secret_text, form.secret), messages.WARNING)
