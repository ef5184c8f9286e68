"""The one thing an operator types: a reason."""

from __future__ import annotations

from django import forms


class ReasonForm(forms.Form):
    """Why messages are rejected; kept with the dead letter."""

    reason = forms.CharField(max_length=500, widget=forms.Textarea(attrs={"rows": 3}))
