"""Templates: versions are added, never changed."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.template import TemplateSyntaxError

from example_project.notifications.admin.base import ShownOnly, may
from example_project.notifications.catalogue import add_version
from example_project.notifications.models import Template
from example_project.notifications.rendering import compiled
from example_project.notifications.validation import check_category


class TemplateForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Refuses what does not compile."""

    class Meta:
        model = Template
        fields = ["name", "channel", "subject", "body", "html", "category"]
        labels = {"html": "HTML"}
        widgets = {"subject": forms.TextInput(attrs={"class": "vTextField"})}

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
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
    list_display = ("name", "channel", "version", "subject", "category", "created_at")
    list_filter = ("channel",)
    search_fields = ("name",)
    ordering = ("name", "channel", "-version")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "add_template")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        add_version(obj)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = ["name", "channel", "subject", "body", "html", "category"]
        return fields if obj is None else [*fields[:2], "version", *fields[2:], "created_at"]
