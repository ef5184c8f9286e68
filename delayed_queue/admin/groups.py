"""The groups of a queue on its page: which are held back and why, and their own limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from django.db.models import Q
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin.formats import clock, number, table
from delayed_queue.facade import DelayedQueue
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import Limit
from delayed_queue.observe.overview import name_of
from delayed_queue.queue.groups import HeldGroup
from delayed_queue.retries import written_rate

_MAX_GROUPS: Final = 100
# The limits of a single group.
_OWN: Final = ("concurrency", "weight", "interval", "burst")
# Values that mean "no limit", where that is not None.
_PLAIN: Final = {"is_fair": True, "is_ordered": False, "blocks_on_dead": False}
_WORDS: Final = {
    "concurrency": _("%(value)s at a time"), "is_ordered": _("in order"),
    "blocks_on_dead": _("a dead letter blocks its group"), "is_fair": _("most overdue first"),
    "weight": _("weight %(value)s"), "interval": _("%(value)s of a group"),
    "burst": _("burst %(value)s"), "queue_interval": _("%(value)s of all together"),
    "queue_burst": _("burst %(value)s of all together"),
}  # fmt: skip
# The reasons of HeldGroup.
_REASONS: Final = {
    "paused": _("paused"), "blocked": _("blocked by a dead letter"), "throttled": _("throttled"),
    "full": _("full"), "waiting": _("waits for a retry"),
    "queue_paused": _("the queue is paused"), "queue_throttled": _("the queue is throttled"),
}  # fmt: skip


def queue_of(kind: str, using: str) -> DelayedQueue:
    return DelayedQueue(name_of(kind).queue, kind=kind, using=using)


def limits_of(row: Limit) -> str:
    """Return the limits of a row in words; empty without any."""
    return ", ".join(_limits(row))


def _limits(row: Limit) -> Iterator[str]:
    for name, words in _WORDS.items():
        value = getattr(row, name)
        if value != _PLAIN.get(name):
            said = written_rate if name.endswith("interval") else number
            yield words % {"value": said(value)}


def why_held(reason: str, pause: Limit | None) -> str:
    """Return why a group is held back; of a pause by whom and for what reason."""
    words = str(_REASONS[reason])
    if pause is None:
        return words
    said = ", ".join(each for each in (pause.paused_by, pause.reason) if each)
    return f"{words}: {said}" if said else words


def groups_of(kind: str, using: str, *, may_change: bool) -> dict[str, Any]:
    """Return what the page of a queue shows of its groups; empty texts without limits."""
    is_set = Q(paused_at__isnull=False) | Q(group="")
    for name in _OWN:
        is_set |= Q(**{f"{name}__isnull": False})
    # The row of all groups, and the first groups that are paused or limited.
    rows = list(
        Limit.objects.using(using).filter(is_set, kind=kind).order_by("group")[: _MAX_GROUPS + 1]
    )
    of_all = next((each for each in rows if not each.group), None)
    singles = {each.group: each for each in rows if each.group}
    return {
        "rules": "" if of_all is None else limits_of(of_all) or gettext("by turns"),
        "held": _held_table(kind, using, singles, may_change=may_change) if rows else "",
        "own": _own_table(singles, may_change=may_change),
    }


def _held_table(
    kind: str, using: str, singles: Mapping[str, Limit], *, may_change: bool
) -> SafeString | str:
    """Return the first groups with messages that are held, and all that are paused."""
    paused = {name: each for name, each in singles.items() if each.paused_at is not None}
    held = [each for each in queue_of(kind, using).groups.held(_MAX_GROUPS) if each.reason]
    lines = [_held(each, paused.pop(each.name, None)) for each in held]
    lines += [[name, why_held("paused", each), "—", "—", "—"] for name, each in paused.items()]
    are_held = {each.name: each.reason in ("paused", "blocked") for each in held}
    heads = [_("Group"), _("Why"), _("Until"), _("Due since"), _("Leased")]
    return _table(heads, lines, are_held | dict.fromkeys(paused, True), may_change=may_change)


def _own_table(singles: Mapping[str, Limit], *, may_change: bool) -> SafeString | str:
    found = {name: each for name, each in singles.items() if _has_own(each)}
    lines = [[name, limits_of(each)] for name, each in found.items()]
    are_held = {name: each.paused_at is not None for name, each in found.items()}
    return _table([_("Group"), _("Limits")], lines, are_held, may_change=may_change)


def _has_own(row: Limit) -> bool:
    return any(getattr(row, name) is not None for name in _OWN)


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


def _held(group: HeldGroup, pause: Limit | None) -> list[Any]:
    most = "" if group.concurrency is None else f" / {number(group.concurrency)}"
    return [
        group.name, why_held(group.reason, pause), _moment(group.until), _moment(group.due_since),
        f"{number(group.leased)}{most}",
    ]  # fmt: skip


def _moment(milliseconds: int | None) -> SafeString | str:
    return "—" if milliseconds is None else clock(from_milliseconds(milliseconds), "D H:i:s")
