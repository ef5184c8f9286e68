"""Forms and form fields that several operations share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import printable
from delayed_queue.durations import ZERO, check_duration
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.retries import parse_rate


@contextmanager
def reasons() -> Iterator[None]:
    """Turn an error of the package into an error of the field."""
    try:
        yield
    except DelayedQueueError as error:
        raise ValidationError(printable(str(error))) from error


@contextmanager
def field_errors(form: forms.BaseForm, field: str | None) -> Iterator[None]:
    """Add an error of the package to the field of the form."""
    try:
        yield
    except DelayedQueueError as error:
        form.add_error(field, printable(str(error)))


class _TextField(forms.CharField):
    """A short text; None when empty."""

    def __init__(self, label: Any, help_text: Any = "", longest: int = 20) -> None:
        super().__init__(
            label=label, max_length=longest, required=False, empty_value=None, help_text=help_text
        )


def count_field(
    label: Any,
    help_text: Any = "",
    *,
    most: int | None = None,
    initial: int | None = None,
    required: bool = False,
) -> forms.IntegerField:
    """Return a field of a whole number from 1."""
    return forms.IntegerField(
        label=label, help_text=help_text, min_value=1, max_value=most, initial=initial,
        required=required,
    )  # fmt: skip


class RateField(_TextField):
    """A rate such as ``10/s``; None when empty."""

    def __init__(self, label: Any, help_text: Any = "") -> None:
        super().__init__(label, help_text, longest=12)

    def clean(self, value: Any) -> Any:
        rate = super().clean(value)
        with reasons():
            if rate is not None:
                parse_rate(rate)
        return rate


class DurationField(_TextField):
    """A duration such as ``30m`` or ``2d``; None when empty."""

    def __init__(
        self, label: Any, help_text: Any, least: timedelta = ZERO, most: timedelta = timedelta.max
    ) -> None:
        super().__init__(label, help_text)
        self.least, self.most = least, most

    def clean(self, value: Any) -> timedelta | None:
        text = super().clean(value)
        with reasons():
            return text and check_duration(str(self.label), text, self.least, self.most)


class RejectForm(forms.Form):
    """The reason for rejecting messages; stored with the dead letter."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, widget=forms.Textarea(attrs={"rows": 3})
    )


class PauseForm(forms.Form):
    """The reason for a pause; shown beside the queue or group while it is paused."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, required=False,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text=_("Shown to your colleagues while it is paused."),
    )  # fmt: skip
