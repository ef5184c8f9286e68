"""The tokens of the HTTP API: made here, shown once, revoked here."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django import forms
from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.fields import count_field
from delayed_queue.admin.formats import column, time_column
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.db.clock import read_clock
from delayed_queue.http.admin.forms import StoredByForm, StoringForm
from delayed_queue.http.models import ApiToken
from delayed_queue.http.tokens import EVERYTHING, VERBS, create_token

_WHAT: Final = {
    "add": _("add: add jobs"),
    "read": _("read: read jobs, topics and metrics"),
    "delete": _("delete: delete jobs"),
    "consume": _("consume: pop jobs and settle them"),
    "manage": _("manage: kick, replay, pause and resume"),
    "metrics": _("metrics: read the metrics of all queues"),
}


class TokenForm(StoringForm):
    """The rights of a new token."""

    verbs = forms.MultipleChoiceField(
        label=_("Verbs"),
        choices=[(each, _WHAT[each]) for each in VERBS],
        widget=forms.CheckboxSelectMultiple,
    )
    topics = forms.CharField(
        label=_("Topics"),
        widget=forms.Textarea(attrs={"rows": 3, "cols": 40}),
        help_text=_(
            "One per line: a topic, or a prefix with a star. A star alone means all "
            "topics in the setting TOPICS."),
    )  # fmt: skip
    days = count_field(_("Days"), _("Validity in days. Empty: no expiry."), most=3650)

    class Meta:
        model = ApiToken
        fields = ("name", "rate", "burst")
        labels = {"name": _("Name"), "rate": _("Rate"), "burst": _("Burst")}
        help_texts = {
            "name": _("The program or person that uses the token."),
            "rate": _("Requests per second. Empty: the setting RATE."),
            "burst": _("Requests at once. Empty: the setting BURST."),
        }

    def store(self, cleaned: dict[str, Any], using: str) -> ApiToken:
        days = cleaned["days"]
        self.secret = create_token(
            cleaned["name"], verbs=cleaned["verbs"], topics=cleaned["topics"].split(),
            expires_at=read_clock(using) + timedelta(days=days) if days else None,
            rate=cleaned["rate"], burst=cleaned["burst"], using=using,
        )  # fmt: skip
        return ApiToken.objects.using(using).get(name=cleaned["name"])


class Revoke(Operation):
    """Disables tokens; there is no way back."""

    name, label, past = "revoke", _("Revoke"), _("Revoked")
    noun = ngettext_lazy("%(count)s token", "%(count)s tokens", "count")
    help = _("Disable the token for good.")
    permission = "delayed_queue_http.revoke_apitoken"
    warning = _(
        "Within a few seconds these tokens are refused, for good. Create new "
        "tokens first if their users must keep working."
    )
    is_destructive = True

    def fits(self, row: Any) -> bool:
        return row.disabled_at is None

    def change(self, row: Any, call: Call, report: Report) -> Any:
        if row.disabled_at is not None:
            return _("revoked already")
        call.written.filter(pk=row.pk).update(disabled_at=read_clock(call.using))
        return True


def at_once(burst: int) -> str:
    """Return a burst in words."""
    return str(_("%(number)s at once") % {"number": formats.number(burst)})


@admin.register(ApiToken)
class ApiTokenAdmin(StoredByForm):
    """The newest first; what a token is cannot be seen, only how it begins."""

    form = TokenForm
    may_change = False
    secret_text = _("The token, shown only now: <code>{}</code>. Hand it over in a safe way.")
    operations = (Revoke(),)
    list_display = (
        "key_column", "state_column", "verbs_column", "topics_column", "rate_column",
        "used_column", "expires_column",
    )  # fmt: skip
    add_fields = ("name", "verbs", "topics", "days", "rate", "burst")
    readonly_fields = (*list_display[1:], "prefix_column")

    key_column = column(_("token"), lambda row: formats.key_label(row.name))
    prefix_column = column(_("begins with"), lambda row: formats.code(f"{row.prefix}…"))
    verbs_column = column(_("may"), lambda row: ", ".join(row.verbs))
    used_column = time_column(_("last used"), "last_used_at")
    expires_column = time_column(_("expires"), "expires_at")

    @admin.display(description=_("state"))
    def state_column(self, row: Any) -> SafeString:
        if row.disabled_at is not None:
            return formats.state("alarm", _("revoked"))
        if row.expires_at is not None and row.expires_at <= row.read_at:
            return formats.state("expired", _("expired"))
        return formats.state("due", _("in force"))

    @admin.display(description=_("topics"))
    def topics_column(self, row: Any) -> str:
        return ", ".join(
            str(_("all served")) if each == EVERYTHING else each for each in row.topics
        )

    @admin.display(description=_("rate"))
    def rate_column(self, row: Any) -> str:
        if row.rate is None:
            return str(_("default"))
        burst = "" if row.burst is None else f", {at_once(row.burst)}"
        return formats.per_second(row.rate) + burst
