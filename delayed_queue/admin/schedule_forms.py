"""The form by which operators make schedules."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.fields import count_field, field_errors, reasons
from delayed_queue.admin.schedule_preview import declared_entry
from delayed_queue.codecs import check_kind, codec_named, encode, kind_of
from delayed_queue.cron.registry import Definition, schedule_of
from delayed_queue.cron.rules import check_key_prefix, load_zone
from delayed_queue.cron.schedules import MAX_EXPRESSION
from delayed_queue.handlers import registry
from delayed_queue.models import Schedule

if TYPE_CHECKING:
    _Base = forms.ModelForm[Schedule]
else:
    _Base = forms.ModelForm  # cannot be subscripted at run time on Django 5.2

_CODEC: Final = "json"
# The escape itself, not an escaped backslash before "u0000".
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_TYPES: Final = [("cron", "cron"), ("daily", "daily"), ("periodic", "periodic")]
_GAPS: Final = [
    ("shift", _("shift: run after the change")), ("skip", _("skip: do not run on that day")),
]  # fmt: skip
_FOLDS: Final = [
    ("", _("default")), ("first", _("the first time")), ("second", _("the second time")),
    ("both", _("both")),
]  # fmt: skip
_MISSED: Final = [
    ("latest", _("latest: the latest one")), ("skip", _("skip: none")), ("all", _("all")),
]  # fmt: skip


def _choice(label: Any, choices: Sequence[tuple[str, Any]], help_text: Any) -> forms.ChoiceField:
    """Return a field that starts with the first choice."""
    first = choices[0][0]
    return forms.ChoiceField(
        label=label, choices=choices, initial=first, required=bool(first), help_text=help_text
    )


class PayloadField(forms.JSONField):
    """JSON, or the reason why it is none."""

    def to_python(self, value: Any) -> Any:
        try:
            return json.loads(value) if value.strip() else None
        # Django's field does not handle too many digits and too deep nesting.
        except (ValueError, RecursionError) as error:
            raise ValidationError(gettext("This is not JSON: %s.") % error) from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        # As typed: parsed and written again, it may be unprintable.
        return initial if self.disabled or data is None else InvalidJSONInput(data)

    def prepare_value(self, value: Any) -> Any:
        if value is None or isinstance(value, InvalidJSONInput):
            return value
        return json.dumps(value, indent=2, ensure_ascii=False)


class ScheduleForm(_Base):
    """A schedule of an operator; queue and prefix are fixed after its creation."""

    type = forms.ChoiceField(label=_("Type"), choices=_TYPES)
    expression = forms.CharField(
        label=_("Expression"),
        max_length=MAX_EXPRESSION,
        widget=forms.TextInput(attrs={"class": "vTextField", "spellcheck": "false"}),
        help_text=_(
            "cron: 30 3 * * mon or @hourly. daily: hours such as 02:00, 14:30. "
            "periodic: a duration such as 90s, 5m or 12h."
        ),
    )
    gap = _choice(_("Gap"), _GAPS, _("For local times that the clocks skip in spring."))
    fold = _choice(
        _("Fold"), _FOLDS, _(
            "For local times that occur twice in autumn. Default: both for a cron "
            "expression that repeats, otherwise the first."),
    )  # fmt: skip
    missed = _choice(_("Missed"), _MISSED, _("How to treat runs missed while no worker was up."))
    missed_cap = count_field(
        _("Missed cap"), _('With "all": catch up at most this many missed runs.'),
        most=1_000_000, initial=100, required=True,
    )  # fmt: skip
    payload = PayloadField(
        label=_("Payload"),
        required=False,
        widget=forms.Textarea(attrs={"rows": 6, "spellcheck": "false"}),
        help_text=_("JSON, the same for each run. Empty: null."),
    )
    is_enabled = forms.BooleanField(
        required=False,
        initial=True,
        label=_("Enabled"),
        help_text=_("Off: its pending ticks are removed."),
    )

    class Meta:
        model = Schedule
        fields = (
            "queue", "key_prefix", "type", "expression", "timezone", "gap", "fold", "missed",
            "missed_cap", "payload", "is_enabled",
        )  # fmt: skip
        labels = {"queue": _("Queue"), "key_prefix": _("Key prefix"), "timezone": _("Timezone")}
        help_texts = {
            "queue": _("The schedule offers its ticks to this queue."),
            "key_prefix": _("A unique name; message keys start with it."),
            "timezone": _("An IANA name such as Europe/Bucharest. Empty: settings.TIME_ZONE."),
        }

    def clean_queue(self) -> str:
        queue: str = self.cleaned_data["queue"]
        with reasons():
            check_kind(kind_of(queue, codec_named(_CODEC)))
        return queue

    def clean_key_prefix(self) -> str:
        with reasons():
            return check_key_prefix(self.cleaned_data["key_prefix"])

    def clean_timezone(self) -> str:
        name: str = self.cleaned_data["timezone"]
        with reasons():
            return load_zone(name).key if name else ""

    def clean_payload(self) -> Any:
        payload = self.cleaned_data["payload"]
        codec = _CODEC if self.instance.pk is None else self.instance.codec
        with reasons():
            encode(codec_named(codec), payload)
        if _NUL.search(encode(codec_named(_CODEC), payload)):
            raise ValidationError(gettext("PostgreSQL cannot store a NUL character in JSON."))
        return payload

    def clean(self) -> None:
        if {"type", "expression"} <= self.cleaned_data.keys():
            self._check_definition(self.cleaned_data)
        if self.instance.pk is None and {"queue", "key_prefix"} <= self.cleaned_data.keys():
            self._check_name(self.cleaned_data["queue"], self.cleaned_data["key_prefix"])
        self._check_treated(self.cleaned_data.get("queue", self.instance.queue))

    def _check_treated(self, queue: str) -> None:
        """Refuse payloads that the app of the queue cannot handle."""
        treatment = registry.get(queue).treatment if queue in registry else None
        if treatment is None or "payload" not in self.cleaned_data:
            return
        if said := treatment.refusal(self.cleaned_data["payload"]):
            self.add_error("payload", said)

    def _check_definition(self, data: dict[str, Any]) -> None:
        """Check the expression alone first, so that its errors are not shown at the policies."""
        name, text = data["type"], data["expression"]
        if name == "periodic":
            if data.get("timezone"):
                said = gettext("A periodic schedule has no time zone: leave it empty.")
                self.add_error("timezone", said)
            data["gap"], data["fold"] = "shift", ""
        fold = data.get("fold") or ""
        trials = (
            ("expression", Definition(name, text)),
            ("fold", Definition(name, text, gap=data.get("gap") or "shift", fold=fold)),
        )
        for field, definition in trials:
            with field_errors(self, field):
                schedule_of(definition)
            if field in self.errors:
                return

    def _check_name(self, queue: str, key_prefix: str) -> None:
        kind = kind_of(queue, codec_named(_CODEC))
        entry = declared_entry(kind, key_prefix)
        if entry is not None:
            text = gettext("The code already declares a schedule with this prefix, in %s.")
            self.add_error("key_prefix", text % entry.declared_in)
        elif Schedule.objects.filter(kind=kind, key_prefix=key_prefix).exists():
            text = gettext(
                "This queue already has a schedule with this prefix, or a program "
                "installed ticks under it. Choose another prefix."
            )
            self.add_error("key_prefix", text)
        self.instance.kind, self.instance.codec = kind, _CODEC
