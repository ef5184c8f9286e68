"""Suppressions: added by recipient, kept and found by hash."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest

from delayed_queue.notifications.admin.base import ShownOnly, may
from delayed_queue.notifications.models import Suppression
from delayed_queue.notifications.recipients import problem_with
from delayed_queue.notifications.suppressions import suppress
from delayed_queue.notifications.validation import check_category


class SuppressionForm(forms.ModelForm):  # type: ignore[type-arg] # not subscriptable at run time
    """Takes a recipient, and stores its hash."""

    recipient = forms.CharField(
        max_length=2048,
        help_text="Only its hash is kept.",
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )

    class Meta:
        model = Suppression
        fields = ["channel", "recipient", "category", "reason"]

    def clean_category(self) -> str:
        category: str = self.cleaned_data["category"]
        if problem := check_category(category):
            raise forms.ValidationError(f"The category {problem}.")
        return category

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        channel, recipient = cleaned.get("channel"), cleaned.get("recipient")
        if channel and recipient and (problem := problem_with(channel, recipient)):
            raise forms.ValidationError({"recipient": f"It {problem}."})
        return cleaned


@admin.register(Suppression)
class SuppressionAdmin(ShownOnly):
    """Newest first; nobody can read back whom they are about."""

    form = SuppressionForm
    list_heading = "Suppressions"
    list_display = ("id", "channel", "category_column", "reason", "created_at")
    ordering = ("-id",)

    @admin.display(description="category")
    def category_column(self, row: Suppression) -> str:
        return row.category or "everything"

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "add_suppression")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return may(request, "delete_suppression")

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Add it, or give the one that is there already another reason."""
        values = form.cleaned_data
        kept = suppress(
            values["channel"], values["recipient"], values["category"], values["reason"]
        )
        obj.pk = kept.pk

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        fields = ["channel", "category", "reason"]
        return ["channel", "recipient", *fields[1:]] if obj is None else [*fields, "created_at"]
