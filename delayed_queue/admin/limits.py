"""Changing the limits of groups, pausing and resuming them, from the page of their queue."""

from __future__ import annotations

from typing import Any, Final

from django import forms
from django.core.exceptions import BadRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin.fields import PauseForm, RateField, count_field, field_errors, reasons
from delayed_queue.admin.groups import queue_of
from delayed_queue.admin.operations import QUEUES, Call, Operation, Report, english
from delayed_queue.admin.queues import PAUSE_QUEUE
from delayed_queue.exceptions import InvalidMessage
from delayed_queue.messages import MAX_GROUP_LENGTH
from delayed_queue.models import Limit
from delayed_queue.observe.overview import name_of
from delayed_queue.queue.groups import GroupService, named, why_not_limited
from delayed_queue.retries import MOST, Groups, written_rate

_GROUPS: Final = ngettext_lazy("%(count)s group", "%(count)s groups", "count")
_ORDERS: Final = [("any", _("any")), ("fifo", _("fifo: one at a time, in order"))]
_ON_DEAD: Final = [
    ("pass", _("pass: continue with the next message")),
    ("block", _("block: stop the group until an operator acts")),
]
# Pairs of fields that may contradict each other; the first gets the error.
_TOGETHER: Final = (("concurrency", "order"), ("burst", "rate"), ("queue_burst", "queue_rate"))


class GroupForm(forms.Form):
    """The group, unless the button named it."""

    group = forms.CharField(label=_("Group"), max_length=MAX_GROUP_LENGTH, strip=False)

    def clean_group(self) -> str:
        with reasons():
            return named(self.cleaned_data["group"])


class PauseGroupForm(PauseForm, GroupForm):
    """The group, and the reason for its pause."""

    field_order = ("group", "reason")


class RatedForm(forms.Form):
    """The fields that the limits of one group and those of all have in common."""

    concurrency = count_field(
        _("At a time"), _("At most this many messages of a group are leased at a time."), most=MOST
    )
    rate = RateField(
        _("Rate"),
        _("At most this many messages of a group are started, for example 10/s, 600/h or 1/d."),
    )
    burst = count_field(_("Burst"), _("At most this many at once after a quiet time."), most=MOST)


class GroupLimitsForm(RatedForm, GroupForm):
    """Limits of one group; what is empty is as for all groups."""

    weight = count_field(
        _("Weight"), _("This many messages per turn; other groups get one."), most=MOST
    )
    field_order = ("group", "concurrency", "weight", "rate", "burst")


class AllLimitsForm(RatedForm):
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
    queue_burst = count_field(_("Burst of the queue"), most=MOST)
    field_order = (
        "concurrency", "order", "on_dead", "fair", "rate", "burst", "queue_rate", "queue_burst",
    )  # fmt: skip

    def clean(self) -> None:
        for together in _TOGETHER:
            if {*together} <= self.cleaned_data.keys():
                with field_errors(self, together[0]):
                    Groups(**{name: self.cleaned_data[name] for name in together})


class Change(Operation):
    """A change of one group, or of all groups of a queue.

    The tokens are the queue's kind and the group; an empty group is all groups, or the one that
    the form names.
    """

    permission = PAUSE_QUEUE
    noun = _GROUPS
    # Why a change that changes nothing is skipped.
    left: Any
    # Changes that only take limits away are allowed for queues that can have none.
    needs_limits = True

    def alter(self, groups: GroupService, group: str, call: Call) -> bool:
        """Change it within the transaction; return False if nothing changed."""
        raise NotImplementedError

    def form(self, data: Any, call: Call) -> forms.Form:
        """Return the form filled with what is stored; for a group that it names, empty."""
        kind, group = call.tokens
        row = call.queryset.filter(group=group).first()
        form = self.form_class(data, initial=_stored(row) if row else {})
        if group:
            form.fields.pop("group", None)
        elif "group" in form.fields:
            form.initial = {}
        if form.is_valid() and self.needs_limits and (lack := why_not_limited(kind, call.using)):
            form.add_error(None, lack)
        return form

    def confirmation(self, call: Call, form: Any) -> dict[str, Any]:
        kind, group = call.tokens
        title = f"{self.label}: {group or name_of(kind).queue}"
        return {"title": title, "button": title, "queue": name_of(kind)}

    def rows(self, call: Call, report: Report) -> list[Any]:
        """Return the row; a new one where there is none yet."""
        kind, group = call.tokens
        row = Limit(kind=kind, group=group or call.options.get("group", ""))
        # Before the row: changes of a topic lock the topic before the limits, too.
        if self.needs_limits and why_not_limited(row.kind, call.using, holds=True):
            report.leave(_("no longer can have limits"), self.name_of(row))
            return []
        stored = call.written.filter(group=row.group).select_for_update().first()
        return [stored or row]

    def change(self, row: Any, call: Call, report: Report) -> Any:
        is_changed = self.alter(queue_of(row.kind, call.using).groups, row.group, call)
        row.pk = row.pk or call.written.filter(group=row.group).values_list("pk", flat=True).first()
        return (is_changed and row.pk is not None) or self.left

    def name_of(self, row: Any) -> str:
        return row.group or name_of(row.kind).queue

    def audit(self, row: Any, call: Call) -> str:
        of = f"Queue {row.kind}, group {row.group}." if row.group else f"Queue {row.kind}."
        given = _given(call).items()
        said = ", ".join(f"{name} {each}" for name, each in given if each not in (None, ""))
        return f"{english(self.past)}. {of}" + (f" {said[:1].upper()}{said[1:]}." if said else "")


class LimitAll(Change):
    name, label = "limit_all", _("Set limits of all groups")
    past, noun, left = _("Limited"), QUEUES, _("without limits already")
    warning = _(
        "These limits replace the earlier ones from the next claim of each worker. "
        "Groups with limits of their own keep them. Leased messages are not "
        "affected. The limits hold until the handler declares different ones."
    )
    form_class = AllLimitsForm

    def alter(self, groups: GroupService, group: str, call: Call) -> bool:
        groups.set(Groups(**_given(call)))
        return True


class Clear(Change):
    name, label = "clear_limits", _("Remove the limits of all groups")
    past, noun, left = _("Removed the limits of"), QUEUES, _("without limits already")
    warning = _("Limits of single groups and pauses remain.")
    needs_limits = False

    def alter(self, groups: GroupService, group: str, call: Call) -> bool:
        groups.clear()
        return True


class LimitOne(Change):
    name, label = "limit_group", _("Set limits of a group")
    past, left = _("Limited"), _("without limits of its own already")
    warning = _(
        "An empty field takes the limit of all groups. Empty all fields to remove "
        "the group's own limits. Takes effect with the next claim of each worker."
    )
    form_class = GroupLimitsForm

    def alter(self, groups: GroupService, group: str, call: Call) -> bool:
        groups.limit(group, **_given(call))
        return True


class PauseGroup(Change):
    name, label = "pause_group", _("Pause a group")
    past, left = _("Paused"), _("paused already")
    warning = _(
        "No process gets a message of the group until it is resumed. Takes effect "
        "at once. Offers are still accepted, and messages in flight are finished."
    )
    form_class = PauseGroupForm

    def alter(self, groups: GroupService, group: str, call: Call) -> bool:
        return groups.pause(group, call.options["reason"], by=call.user.get_username())


class ResumeGroup(Change):
    name, label = "resume_group", _("Resume a group")
    past, left = _("Resumed"), _("not held")
    warning = _("Its messages are delivered again; its dead letters no longer block it.")
    form_class = GroupForm
    needs_limits = False

    def alter(self, groups: GroupService, group: str, call: Call) -> bool:
        return groups.resume(group)


CHANGES: Final[tuple[Change, ...]] = (LimitAll(), LimitOne(), PauseGroup(), ResumeGroup(), Clear())


def _given(call: Call) -> dict[str, Any]:
    return {name: each for name, each in call.options.items() if name != "group"}


def _stored(row: Limit) -> dict[str, Any]:
    """Return the limits of the row as the forms have them."""
    names = ("concurrency", "weight", "burst", "queue_burst")
    rates = {"rate": row.interval, "queue_rate": row.queue_interval}
    written = {name: "" if each is None else written_rate(each) for name, each in rates.items()}
    return {
        **written, **{name: getattr(row, name) for name in names}, "fair": row.is_fair,
        "order": "fifo" if row.is_ordered else "any",
        "on_dead": "block" if row.blocks_on_dead else "pass",
    }  # fmt: skip


def group_target(kind: str, value: str) -> list[str]:
    """Return the tokens of a change whose button has this value."""
    try:
        return [kind, named(value) if value else ""]
    except InvalidMessage as error:
        raise BadRequest(str(error)) from error
