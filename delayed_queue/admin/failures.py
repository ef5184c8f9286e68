"""The failures: what is dead by its cause, and starting bulk runs over one of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from django import forms
from django.contrib.admin.models import ADDITION
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import QueueModelAdmin
from delayed_queue.admin.fields import DurationField, count_field, reasons
from delayed_queue.admin.filters import FAILURE, KIND, chosen_kind, valid_kind
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.db.clock import ago, database_now
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import BulkRun, DeadLetter
from delayed_queue.observe.overview import Count, name_of
from delayed_queue.queue import bulk
from delayed_queue.queue.fingerprints import describe
from delayed_queue.queue.store.dead_letters import GROUP_CAP, MAX_GROUPS, GroupRow

_SHOWN: Final = 20
_RUN_TEXT: Final = _(
    "Workers carry it out, oldest dead letters first. Messages that die from now on "
    "are not included."
)


class RunForm(forms.Form):
    """The pace, limits and reason of a run; by default slow and behind a canary."""

    pace = count_field(
        _("Dead letters a second"), _("Empty: as fast as possible."),
        most=bulk.MAX_PACE, initial=bulk.SAFE_PACE,
    )  # fmt: skip
    canary = count_field(
        _("Canary"),
        _("Redrive this many first; continue only if they do not die of the same failure."),
        most=bulk.MAX_CANARY, initial=bulk.SAFE_CANARY,
    )  # fmt: skip
    why = forms.CharField(
        required=False, max_length=500, label=_("Why"), help_text=_("Stored with the run.")
    )
    over = DurationField(_("Spread over"), _("A duration such as 2h, instead of a rate."))
    newer_than = DurationField(_("Died within the last …"), _("A duration, for example 30m or 2d."))
    older_than = DurationField(_("Died longer ago than …"), _("A duration, for example 30m or 2d."))
    limit = count_field(_("At most"), _("Empty: all."))
    canary_deaths = count_field(
        _("Stop after"), _("Stop if this many of the canary die again. Empty: 1."),
        most=bulk.MAX_CANARY,
    )  # fmt: skip
    # Below "More options".
    more = ("over", "newer_than", "older_than", "limit", "canary_deaths")

    def __init__(self, data: Any, plan: bulk.BulkPlan, using: str) -> None:
        super().__init__(data)
        self.using = using
        # Over the whole failure, unless what was typed makes a plan.
        self.plan = plan
        if plan.action != bulk.REDRIVE:
            del self.fields["canary"], self.fields["canary_deaths"]

    @property
    def has_more(self) -> bool:
        """True if one of the other options is filled or wrong."""
        return any(self.data.get(name) or name in self.errors for name in self.more)

    def clean(self) -> None:
        if not self.errors:
            with reasons():
                self.plan = self.cleaned_data["plan"] = replace(self.plan, **self._given())

    def _given(self) -> dict[str, Any]:
        given = {
            name: value
            for name, value in self.cleaned_data.items()
            if value is not None and name != "why"
        }
        if "over" in given and given.get("pace") == bulk.SAFE_PACE:
            del given["pace"]  # the default gives way
        for name, age in (("since", "newer_than"), ("until", "older_than")):
            if age in given:
                given[name] = ago(given.pop(age), self.using)
        return given


class StartRun(Operation):
    """Starts a bulk run over a failure; the token is its fingerprint and kind."""

    changed_text = _("The run has started. Workers carry it out; this page shows their progress.")
    flag = ADDITION
    form_class = RunForm
    title: Any

    def plan(self, call: Call) -> bulk.BulkPlan:
        fingerprint, kind = call.tokens[0].partition(":")[::2]
        try:
            return bulk.BulkPlan(self.name, kind, fingerprint)
        except InvalidMessage as error:
            raise BadRequest(str(error)) from error

    def form(self, data: Any, call: Call) -> RunForm:
        return RunForm(data, self.plan(call), call.using)

    def confirmation(self, call: Call, form: Any) -> dict[str, Any]:
        plan: bulk.BulkPlan = form.plan
        found = plan.preview(call.using)
        letters = DeadLetter.objects.using(call.using).filter(
            kind=plan.kind, fingerprint=plan.fingerprint
        )
        example = letters.order_by("-died_at", "-id").only("reason", "last_error").first()
        return {
            "title": self.title, "button": _("%(label)s them") % {"label": self.label},
            "queue": name_of(plan.kind), "meant": found.meant,
            "count": formats.counted(Count(found.meant, found.seen == bulk.PREVIEW_CAP)),
            "failure": example and _title(example.reason, example.last_error),
        }  # fmt: skip

    def next_url(self, model_admin: Any, report: Report) -> str:
        return "".join(
            model_admin.url("delayed_queue_bulkrun_change", row.pk) for row in report.rows
        )

    def rows(self, call: Call, report: Report) -> list[Any]:
        plan: bulk.BulkPlan = call.options["plan"]
        return [BulkRun(kind=plan.kind, fingerprint=plan.fingerprint)]

    def change(self, row: Any, call: Call, report: Report) -> Any:
        plan, why = call.options["plan"], call.options["why"]
        row.pk = plan.start(by=str(call.user), why=why, using=call.using)
        row.refresh_from_db(using=call.using)
        return True

    def name_of(self, row: Any) -> str:
        return str(row)

    def audit(self, row: Any, call: Call) -> str:
        why = call.options["why"]
        said = f"Begun. Failure {row.fingerprint} of {row.kind}."
        return f"{said} {why}" if why else said


class StartRedrive(StartRun):
    name, label = bulk.REDRIVE, _("Redrive")
    title = _("Redrive all dead letters of this failure?")
    permission = "delayed_queue.redrive_deadletter"
    warning = format_lazy(
        "{} {}", _RUN_TEXT, _("A dead letter whose key is in use is not redriven.")
    )


class StartDrop(StartRun):
    name, label = "drop", _("Drop")
    title = _("Drop all dead letters of this failure?")
    permission = "delayed_queue.drop_deadletter"
    warning = format_lazy(
        "{} {}", _RUN_TEXT, _("They are deleted for good, with their payloads and errors.")
    )
    is_destructive = True


_STARTS: Final = (StartRedrive(), StartDrop())


def failures_view(model_admin: QueueModelAdmin, request: HttpRequest) -> HttpResponse:
    using = model_admin.get_queryset(request).db
    if request.method == "POST":
        above = formats.link(request.path, _("Failures"))
        runs = BulkRun.objects.using(model_admin.writer(request))
        return model_admin.press(request, _STARTS, runs.all(), lambda token: [token], above=above)
    kind = chosen_kind(request)
    kinds = None if kind is None else [valid_kind(kind)]
    rows = DeadLetter.objects.groups(kinds, shown=_SHOWN, using=using)
    found, now = rows[0].groups if rows else 0, database_now(using)
    context = {
        "title": _("Failures"),
        "lines": [_line(row, now) for row in rows],
        "hidden": max(found - _SHOWN, 0),
        "is_cut": found == MAX_GROUPS,
        "starts": [each for each in _STARTS if model_admin.allows(request, each)],
    }
    return model_admin.page(request, "delayed_queue/failures", context)


def _line(row: GroupRow, now: datetime) -> dict[str, Any]:
    """Return a failure of a queue, in words."""
    cap = GROUP_CAP - 1
    first, last = (formats.since(from_milliseconds(at), now) for at in (row.first_at, row.last_at))
    return {
        "row": row, "name": name_of(row.kind), "title": _title(row.reason, row.error),
        "count": formats.counted(Count(min(row.letters, cap), row.letters > cap)),
        "first": first, "last": last,
        "query": urlencode({KIND: row.kind, FAILURE: row.fingerprint}),
    }  # fmt: skip


def _title(reason: str, error: str | None) -> str:
    return formats.printable(describe(reason, error))
