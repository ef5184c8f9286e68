"""Fields of the admin's forms for what the package reads from a text; a slip is told beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from delayed_queue.admin.formats import printable
from delayed_queue.exceptions import DelayedQueueError
from delayed_queue.retries import parse_duration, parse_rate


@contextmanager
def reasons() -> Iterator[None]:
    """Turn a refusal of the library into one of the field."""
    try:
        yield
    except DelayedQueueError as error:
        raise ValidationError(printable(str(error))) from error


class _TextField(forms.CharField):
    """A short text, or none."""

    longest = 20

    def __init__(self, label: Any, help_text: Any = "") -> None:
        super().__init__(
            label=label,
            max_length=self.longest,
            required=False,
            empty_value=None,
            help_text=help_text,
        )


class RateField(_TextField):
    """A rate as it is written, or none."""

    longest = 12

    def clean(self, value: Any) -> Any:
        rate = super().clean(value)
        with reasons():
            if rate is not None:
                parse_rate(rate)
        return rate


class DurationField(_TextField):
    """A time as handlers write it, ``30m`` or ``2d``, or none."""

    def clean(self, value: Any) -> timedelta | None:
        text = super().clean(value)
        with reasons():
            return None if text is None else parse_duration(text)
