"""Templates: versions are added, never changed."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.template import TemplateSyntaxError
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.notifications.admin.base import ShownOnly, may
from delayed_queue.notifications.catalogue import add_version
from delayed_queue.notifications.models import Template
from delayed_queue.notifications.rendering import compiled
from delayed_queue.notifications.validation import check_category

WRITTEN: Final = ["name", "channel", "subject", "body", "html", "category"]
TEXTS: Final = ("body", "html")


class TemplateForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Refuses what does not compile."""

    class Meta:
        model = Template
        fields = WRITTEN
        labels = {"html": "HTML"}
        widgets = {"subject": forms.TextInput(attrs={"class": "vTextField"})}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        # As browsers send them; an SMS would pay for each carriage return.
        cleaned |= {name: str(cleaned.get(name) or "").replace("\r\n", "\n") for name in TEXTS}
        if problem := check_category(cleaned.get("category") or ""):
            self.add_error("category", f"It {problem}.")
        if not self.errors:
            try:
                compiled(Template(**cleaned))
            except TemplateSyntaxError as error:
                raise forms.ValidationError(f"It does not compile: {error}") from error
        return cleaned


@admin.register(Template)
class TemplateAdmin(ShownOnly):
    """The last version of a name and channel counts."""

    form = TemplateForm
    list_heading = "Templates"
    list_display = ("name", "channel", "version", "subject", "category", "created_at")
    list_filter = ("channel",)
    search_fields = ("name",)
    ordering = ("name", "channel", "-version")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "add_template")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        add_version(obj)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return WRITTEN
        return [
            "name", "channel", "version", "subject", "body_shown", "html_shown", "category",
            "created_at",
        ]  # fmt: skip

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [] if obj is None else self.get_fields(request, obj)

    @admin.display(description="body")
    def body_shown(self, row: Template) -> SafeString:
        return formats.block(row.body)

    @admin.display(description="HTML")
    def html_shown(self, row: Template) -> SafeString:
        return formats.block(row.html) if row.html else formats.NOTHING

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Begin with the version that is to have a successor: ``?from=`` and its number."""
        number = request.GET.get("from", "")
        is_number = number.isascii() and number.isdigit() and len(number) < 19
        found = Template.objects.filter(pk=int(number)).first() if is_number else None
        return {name: getattr(found, name) for name in WRITTEN} if found else {}
