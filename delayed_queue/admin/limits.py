"""The groups of a queue on its page: which are held back and why, and the limits to be changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib.admin.models import CHANGE
from django.core.exceptions import BadRequest, PermissionDenied
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.base import CONFIRMED, QueueModelAdmin
from delayed_queue.admin.formats import dated, number, printable, table
from delayed_queue.admin.operations import (
    GROUPS,
    QUEUES,
    Call,
    Entry,
    Operation,
    RateField,
    Report,
    reasons,
    record,
)
from delayed_queue.admin.overview import asked
from delayed_queue.exceptions import InvalidConfiguration, InvalidMessage
from delayed_queue.messages import MAX_GROUP_LENGTH, from_milliseconds
from delayed_queue.models import Limit
from delayed_queue.observe.overview import name_of
from delayed_queue.queue.groups import HeldGroup, named, why_not_limited
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.retries import MOST, Groups, written_rate

if TYPE_CHECKING:
    Rows = QuerySet[Limit]

_MOST_GROUPS: Final = 100
_RATES: Final = {"rate": "interval", "queue_rate": "queue_interval"}
_OWN: Final = ("concurrency", "weight", "interval", "burst")
_OF_ALL: Final = (
    "concurrency", "is_ordered", "blocks_on_dead", "is_fair", "interval", "burst",
    "queue_interval", "queue_burst",
)  # fmt: skip
# What says nothing, where that is not None.
_PLAIN: Final = {"is_fair": True, "is_ordered": False, "blocks_on_dead": False}
_SAID: Final = {
    "concurrency": _("%(value)s at a time"), "is_ordered": _("in order"),
    "blocks_on_dead": _("a dead letter blocks its group"), "is_fair": _("most overdue first"),
    "weight": _("weight %(value)s"), "interval": _("%(value)s of a group"),
    "burst": _("burst %(value)s"), "queue_interval": _("%(value)s of all together"),
    "queue_burst": _("burst %(value)s of all together"),
}  # fmt: skip
_ORDERS: Final = [("any", _("any")), ("fifo", _("fifo: one at a time, in order"))]
_ON_DEAD: Final = [
    ("pass", _("pass: continue with the next message")),
    ("block", _("block: stop the group until an operator acts")),
]
# What may contradict each other; the first has the error.
_TOGETHER: Final = (("concurrency", "order"), ("burst", "rate"), ("queue_burst", "queue_rate"))


# The forms


def _number(label: Any, help_text: Any = "") -> forms.IntegerField:
    return forms.IntegerField(
        label=label, min_value=1, max_value=MOST, required=False, help_text=help_text
    )


class PlainForm(forms.Form):
    """What was shown, so that nothing else is changed."""

    seen = forms.CharField(required=False, widget=forms.HiddenInput)


class GroupForm(PlainForm):
    """The group, where the button has not named it."""

    group = forms.CharField(label=_("Group"), max_length=MAX_GROUP_LENGTH, strip=False)

    def clean_group(self) -> str:
        with reasons():
            return named(self.cleaned_data["group"])


class PauseGroupForm(GroupForm):
    """The reason for a pause; shown beside the group for as long as it is paused."""

    reason = forms.CharField(
        label=_("Reason"), max_length=500, required=False,
        widget=forms.TextInput(attrs={"size": 60}),
        help_text=_("Shown to your colleagues beside the group."),
    )  # fmt: skip


class RatedForm(forms.Form):
    """The fields that the limits of one group and those of all have in common."""

    concurrency = _number(
        _("At a time"), _("At most this many messages of a group are leased at a time.")
    )
    rate = RateField(
        _("Rate"),
        _("At most this many messages of a group are started, for example 10/s, 600/h or 1/d."),
    )
    burst = _number(_("Burst"), _("At most this many at once after a quiet time."))


class GroupLimitsForm(RatedForm, GroupForm):
    """Limits of one group; what is empty is as for all groups."""

    weight = _number(_("Weight"), _("This many messages per turn; other groups get one."))
    field_order = ("group", "concurrency", "weight", "rate", "burst")


class AllLimitsForm(RatedForm, PlainForm):
    """Limits of all groups, and of the queue."""

    order = forms.ChoiceField(label=_("Order"), choices=_ORDERS, initial="any")
    on_dead = forms.ChoiceField(
        label=_("After a dead letter"), choices=_ON_DEAD, initial="pass",
        help_text=_("The effect on the rest of its group."),
    )  # fmt: skip
    fair = forms.BooleanField(
        label=_("By turns"), required=False, initial=True,
        help_text=_("Off: the most overdue message first."),
    )  # fmt: skip
    queue_rate = RateField(_("Rate of the queue"), _("For all groups together."))
    queue_burst = _number(_("Burst of the queue"))
    field_order = (
        "concurrency", "order", "on_dead", "fair", "rate", "burst", "queue_rate", "queue_burst",
    )  # fmt: skip

    def clean(self) -> None:
        for together in _TOGETHER:
            if {*together} <= self.cleaned_data.keys():
                self._check({name: self.cleaned_data[name] for name in together})

    def _check(self, given: dict[str, Any]) -> None:
        try:
            Groups(**given)
        except InvalidConfiguration as error:
            self.add_error(next(iter(given)), printable(str(error)))


# What they do


class Change(Operation):
    """A change of one group, or of what holds for all of a queue; the token is its kind."""

    permission = "delayed_queue.pause_queue"
    form_class: type[forms.Form] = PlainForm
    left: Any
    # What the operator has seen of the row, and what a change by another is known by.
    fence: tuple[str, ...] = ()
    # Or nothing is claimed of a queue that can have no limits.
    holds_back = True

    def change(self, queue: DelayedQueue, group: str, call: Call) -> bool:
        """Change it, within the transaction; return False if it is so already."""
        raise NotImplementedError

    def initial(self, row: Limit) -> dict[str, Any]:
        return {}

    def said(self, row: Limit) -> str:
        """Return what a row says, to an operator who has not seen it."""
        return ", ".join(_words(row)) or gettext("no limits")

    def run(self, call: Call) -> Report:
        kind, group = call.tokens[0], call.options.get("group", "")
        name = group or name_of(kind).queue
        report = Report(self.past, GROUPS if group else QUEUES)
        with call.transaction():
            # Before the row: whoever changes a topic has it before the limits, too.
            if self.holds_back and why_not_limited(kind, call.using, holds=True):
                report.leave(_("no longer can have limits"), name)
                return report
            rows = call.queryset.using(call.using).filter(group=group)
            before = rows.select_for_update().first()
            if seen_of(before, self.fence) != call.options["seen"]:
                report.leave(_("changed meanwhile"), name)
                return report
            is_changed = self.change(_queue(kind, call.using), group, call)
            row = rows.first() or before
            if row is None or not is_changed:
                report.leave(self.left, name)
                return report
            report.changed.append(name)
            record(call, CHANGE, [Entry(row, self._audit(kind, group, call))])
        return report

    def _audit(self, kind: str, group: str, call: Call) -> str:
        of = f"Queue {kind}, group {group}." if group else f"Queue {kind}."
        given = _given(call).items()
        said = ", ".join(f"{name} {each}" for name, each in given if each not in (None, ""))
        return f"{self.recorded}. {of}" + (f" {said[:1].upper()}{said[1:]}." if said else "")


_NOT_TOLD: Final = ("group", "seen")


class LimitAll(Change):
    name = "limit_all"
    label = _("Set limits of all groups")
    past, left = _("Limited"), _("without limits already")
    warning = _(
        "These limits replace the earlier ones from the next claim of each worker. "
        "Groups with limits of their own keep them. Leased messages are not "
        "affected. The limits hold until the handler declares different ones."
    )
    form_class = AllLimitsForm
    fence = _OF_ALL

    def initial(self, row: Limit) -> dict[str, Any]:
        return _stored(row) | {
            "order": "fifo" if row.is_ordered else "any", "fair": row.is_fair,
            "on_dead": "block" if row.blocks_on_dead else "pass",
        }  # fmt: skip

    def change(self, queue: DelayedQueue, group: str, call: Call) -> bool:
        queue.groups.set(Groups(**_given(call)))
        return True


class Clear(Change):
    name = "clear_limits"
    label = _("Remove the limits of all groups")
    past, left = _("Removed the limits of"), _("without limits already")
    warning = _("Limits of single groups and pauses remain.")
    fence = _OF_ALL
    holds_back = False

    def change(self, queue: DelayedQueue, group: str, call: Call) -> bool:
        queue.groups.clear()
        return True


class LimitOne(Change):
    name = "limit_group"
    label = _("Set limits of a group")
    past, left = _("Limited"), _("without limits of its own already")
    warning = _(
        "An empty field takes the limit of all groups. Empty all fields to remove "
        "the group's own limits. Takes effect with the next claim of each worker."
    )
    form_class = GroupLimitsForm
    fence = _OWN

    def initial(self, row: Limit) -> dict[str, Any]:
        return _stored(row)

    def change(self, queue: DelayedQueue, group: str, call: Call) -> bool:
        queue.groups.limit(group, **_given(call))
        return True


class PauseGroup(Change):
    name = "pause_group"
    label = _("Pause a group")
    past, left = _("Paused"), _("paused already")
    warning = _(
        "No process gets a message of the group until it is resumed. Takes effect "
        "at once. Offers are still accepted, and messages in flight are finished."
    )
    form_class = PauseGroupForm

    def change(self, queue: DelayedQueue, group: str, call: Call) -> bool:
        reason = call.options.get("reason", "")
        return queue.groups.pause(group, reason, by=call.user.get_username())


class ResumeGroup(Change):
    name = "resume_group"
    label = _("Resume a group")
    past, left = _("Resumed"), _("not held")
    warning = _("Its messages are delivered again; its dead letters no longer block it.")
    form_class = GroupForm
    fence = ("paused_at",)
    holds_back = False

    def said(self, row: Limit) -> str:
        return _why("paused", row)

    def change(self, queue: DelayedQueue, group: str, call: Call) -> bool:
        return queue.groups.resume(group)


CHANGES: Final[tuple[Change, ...]] = (LimitAll(), LimitOne(), PauseGroup(), ResumeGroup(), Clear())


def _queue(kind: str, using: str) -> DelayedQueue:
    return DelayedQueue(name_of(kind).queue, kind=kind, using=using)


def _given(call: Call) -> dict[str, Any]:
    return {name: each for name, each in call.options.items() if name not in _NOT_TOLD}


def _stored(row: Limit) -> dict[str, Any]:
    """Return the limits of the row as the forms have them."""
    rates = {name: getattr(row, column) for name, column in _RATES.items()}
    written = {name: "" if each is None else written_rate(each) for name, each in rates.items()}
    return written | {
        name: getattr(row, name) for name in ("concurrency", "weight", "burst", "queue_burst")
    }


def seen_of(row: Limit | None, fence: Sequence[str]) -> str:
    """Return what is shown of a row; empty where it says nothing, as if it were not there."""
    if row is None:
        return ""
    found = {name: getattr(row, name) for name in fence}
    return ", ".join(f"{name} {each}" for name, each in found.items() if each != _PLAIN.get(name))


# The pages


def change_view(model_admin: QueueModelAdmin, request: HttpRequest, kind: str) -> HttpResponse:
    """Change what was posted, after a page that asks, and asks again where something is wrong."""
    change = next((each for each in CHANGES if each.name in request.POST), None)
    if change is None:
        raise BadRequest("There is no such change.")
    if not model_admin.may(request, change):
        raise PermissionDenied
    using = model_admin.get_queryset(request).select_for_update().db
    rows = Limit.objects.using(using).filter(kind=kind)
    group = _target(request.POST[change.name])
    data = request.POST.dict() if CONFIRMED in request.POST else None
    form = _form(change, kind, rows, group, data)
    if not form.is_valid():
        return _confirmation(model_admin, request, change, kind, group, form)
    options = {"group": group, **form.cleaned_data} if group else form.cleaned_data
    model_admin.carry_out(request, change, Call(rows, [kind], request.user, options))
    return HttpResponseRedirect(request.get_full_path())


def _target(group: str) -> str:
    try:
        return named(group) if group else ""
    except InvalidMessage as error:
        raise BadRequest(str(error)) from error


def _form(
    change: Change, kind: str, rows: Rows, group: str, data: dict[str, Any] | None
) -> forms.Form:
    if data is None:
        is_to_be_named = not group and "group" in change.form_class.base_fields
        row = None if is_to_be_named else rows.filter(group=group).first()
        seen = {"seen": seen_of(row, change.fence)}
        form = change.form_class(initial={**(change.initial(row) if row else {}), **seen})
    else:
        form = change.form_class(data)
    if group:
        form.fields.pop("group", None)
    if form.is_valid():
        _check(change, kind, rows, form, group)
    return form


def _check(change: Change, kind: str, rows: Rows, form: forms.Form, group: str) -> None:
    """Refuse what no claim could keep, and what would replace what was not shown."""
    lack = why_not_limited(kind, rows.db) if change.holds_back else ""
    row = rows.filter(group=group or form.cleaned_data.get("group", "")).first()
    now = seen_of(row, change.fence)
    if lack:
        form.add_error(None, lack)
    elif row is not None and now != form.cleaned_data["seen"]:
        said = gettext(
            "The limits were changed in the meantime. Now: %(now)s. Press again to "
            "change them anyway."
        )
        field = "group" if "group" in form.fields else None
        form.add_error(field, said % {"now": change.said(row)})
        form.data = {**form.data, "seen": now}


def _confirmation(
    model_admin: QueueModelAdmin,
    request: HttpRequest,
    change: Change,
    kind: str,
    group: str,
    form: forms.Form,
) -> HttpResponse:
    name = name_of(kind)
    of = group or name.queue
    shown = {
        "title": f"{change.label}: {of}", "button": f"{change.label}: {of}", "target": group,
        "queue": name, "pause": None, "paused_for": "", "back": request.get_full_path(),
    }  # fmt: skip
    return asked(model_admin, request, change, form, shown)


def groups_of(kind: str, using: str, *, may_change: bool) -> dict[str, Any]:
    """Return what the page of a queue shows of its groups; empty texts where it has no limits."""
    rows = list(_that_hold(kind, using))
    of_all = next((each for each in rows if not each.group), None)
    singles = {each.group: each for each in rows if each.group}
    return {
        "rules": "" if of_all is None else ", ".join(_words(of_all)) or gettext("by turns"),
        "held": _held_table(kind, using, singles, may_change=may_change) if rows else "",
        "own": _own_table(singles.values(), may_change=may_change),
        "changes": CHANGES if may_change else (),
    }


def _that_hold(kind: str, using: str) -> Rows:
    """Return what is set for all groups, and the first groups that are paused or limited."""
    is_set = Q(paused_at__isnull=False) | Q(group="")
    for name in _OWN:
        is_set |= Q(**{f"{name}__isnull": False})
    rows = Limit.objects.using(using).filter(is_set, kind=kind)
    return rows.order_by("group")[: _MOST_GROUPS + 1]


# Why a group is held back, as HeldGroup has it.
_REASONS: Final = {
    "paused": _("paused"), "blocked": _("blocked by a dead letter"), "throttled": _("throttled"),
    "full": _("full"), "waiting": _("waits for a retry"),
    "queue_paused": _("the queue is paused"), "queue_throttled": _("the queue is throttled"),
}  # fmt: skip


def _held_table(
    kind: str, using: str, singles: Mapping[str, Limit], *, may_change: bool
) -> SafeString | str:
    """Return the groups that have messages, of the first, and are held; and all that are paused."""
    paused = {name: each for name, each in singles.items() if each.paused_at is not None}
    held = [each for each in _queue(kind, using).groups.held(_MOST_GROUPS) if each.reason]
    lines = [_held(each, paused.pop(each.name, None)) for each in held]
    lines += [[name, _why("paused", each), "—", "—", "—"] for name, each in paused.items()]
    are_held = {each.name: each.reason in ("paused", "blocked") for each in held}
    heads = [_("Group"), _("Why"), _("Until"), _("Due since"), _("Leased")]
    return _table(heads, lines, are_held | dict.fromkeys(paused, True), may_change=may_change)


def _own_table(singles: Any, *, may_change: bool) -> SafeString | str:
    found = {each.group: each for each in singles if seen_of(each, _OWN)}
    lines = [[name, ", ".join(_words(each))] for name, each in found.items()]
    are_held = {name: each.paused_at is not None for name, each in found.items()}
    return _table([_("Group"), _("Limits")], lines, are_held, may_change=may_change)


def _table(
    heads: list[Any], lines: list[list[Any]], are_held: Mapping[str, bool], *, may_change: bool
) -> SafeString | str:
    if not lines:
        return ""
    if may_change:
        heads = [*heads, ""]
        lines = [[*each, _buttons(each[0], is_held=are_held[each[0]])] for each in lines]
    return table([str(each) for each in heads], lines)


def _buttons(group: str, *, is_held: bool) -> SafeString:
    switch = ("resume_group", _("Resume")) if is_held else ("pause_group", _("Pause"))
    buttons = format_html_join(
        " ",
        '<button type="submit" form="dq-groups" name="{}" value="{}" class="button">{}…</button>',
        ((name, group, label) for name, label in (("limit_group", _("Limits")), switch)),
    )
    return format_html('<span class="dq-switch">{}</span>', buttons)


def _held(group: HeldGroup, pause: Limit | None) -> list[str]:
    most = "" if group.concurrency is None else f" / {number(group.concurrency)}"
    return [
        group.name, _why(group.reason, pause), _moment(group.until), _moment(group.due_since),
        f"{number(group.leased)}{most}",
    ]  # fmt: skip


def _why(reason: str, pause: Limit | None) -> str:
    if pause is None:
        return str(_REASONS[reason])
    said = ", ".join(each for each in (pause.paused_by, pause.reason) if each)
    return f"{_REASONS[reason]}: {said}" if said else str(_REASONS[reason])


def _moment(milliseconds: int | None) -> str:
    return "—" if milliseconds is None else dated(from_milliseconds(milliseconds), "D H:i:s")


def _words(row: Limit) -> Iterator[str]:
    """Yield what a row says, in words."""
    for name, words in _SAID.items():
        value = getattr(row, name)
        if value != _PLAIN.get(name):
            said = written_rate if name in _RATES.values() else number
            yield words % {"value": said(value)}
