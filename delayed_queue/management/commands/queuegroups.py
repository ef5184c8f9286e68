"""``manage.py queuegroups``: the groups of a queue, what holds them back, and the limits."""

from __future__ import annotations

import getpass
from argparse import ArgumentParser
from datetime import datetime
from functools import partial
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import transaction
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.db.resilience import never, repeat
from delayed_queue.management.base import (
    WRONG_USAGE,
    QueueCommand,
    add_database,
    add_format,
    count,
    queue_named,
    show,
    tell,
)
from delayed_queue.messages import from_milliseconds
from delayed_queue.models import Limit
from delayed_queue.queue.groups import HeldGroup, named, why_not_limited
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.retries import MOST, ON_DEAD, ORDERS, Groups

_ALL: Final = ("concurrency", "rate", "burst", "queue_rate", "queue_burst", "order", "on_dead")
_OWN: Final = ("concurrency", "weight", "rate", "burst")


class Command(QueueCommand):
    help = gettext_noop(
        "Show which groups of a queue are held back, and why; set limits, pause and resume groups."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        held = commands.add_parser("list", help=_("groups that have messages, held ones first"))
        held.add_argument("queue", help=_("a queue, or a kind as name|codec"))
        held.add_argument("--limit", type=count(1, MOST), default=100, metavar="N",
                          help=_("show at most this many groups (default: 100)"))  # fmt: skip
        add_format(held)
        limits = commands.add_parser("limits", help=_("the limits that are set"))
        limits.add_argument("queue", help=_("a queue, or a kind as name|codec"))
        add_format(limits)
        for name, words, has_group in (
            ("set", _("set the limits of all groups, replacing the earlier ones"), False),
            ("limit", _("set the limits of one group, replacing the earlier ones"), True),
            ("clear", _("remove the limits of all groups"), False),
            ("pause", _("pause a group: deliver none of its messages"), True),
            ("resume", _("resume a group; its dead letters no longer block it"), True),
        ):
            _add_change(commands.add_parser(name, help=words), name, has_group=has_group)
        add_database(parser, commands)

    def handle(self, **options: Any) -> None:
        queue = queue_named(options["queue"], options["database"])
        command, style = options["command"], options["format"]
        if command == "list":
            show(self.stdout, [_row(each) for each in queue.groups.held(options["limit"])], style)
        elif command == "limits":
            show(self.stdout, list(map(_limits, _stored(queue))), style)
        else:
            self._change(queue, command, options)

    def _change(self, queue: DelayedQueue, command: str, options: dict[str, Any]) -> None:
        group = options.get("group")
        of = queue.kind
        if group is not None:
            of = _("%(queue)s, group %(group)s,") % {"queue": queue.kind, "group": named(group)}
        act = partial(_act, queue, command, options)
        was_changed = repeat(queue.using, act, doubt=never)
        said = _("%s would be changed.") if options["dry_run"] else _("%s is changed.")
        if command in ("pause", "resume") and not was_changed:
            said = _("%s is paused already.") if command == "pause" else _("%s is not held.")
        facts = {"queue": queue.kind, "group": group, "was_changed": was_changed}
        if options["dry_run"]:
            facts["was_changed"] = False
        tell(self.stdout, said % of, options["format"], **facts)


def _add_change(parser: ArgumentParser, name: str, *, has_group: bool) -> None:
    parser.add_argument("queue", help=_("a queue, or a kind as name|codec"))
    if has_group:
        parser.add_argument("group", help=_("a group"))
    for option in {"set": _ALL, "limit": _OWN}.get(name, ()):
        choices = {"order": ORDERS, "on_dead": ON_DEAD}.get(option)
        is_number = option in ("concurrency", "weight", "burst", "queue_burst")
        parser.add_argument(
            f"--{option.replace('_', '-')}", choices=choices,
            type=count(1, MOST) if is_number else str, help=_("see the guide"),
        )  # fmt: skip
    if name == "set":
        parser.add_argument("--unfair", action="store_true", help=_("most overdue first"))
    if name == "pause":
        parser.add_argument("--why", default="", metavar="TEXT", help=_("shown beside the queue"))
    parser.add_argument("--dry-run", action="store_true", help=_("only show what would change"))
    add_format(parser)


def _act(queue: DelayedQueue, command: str, options: dict[str, Any]) -> bool:
    """Change it, while nothing makes limits of the queue inexact."""
    with transaction.atomic(using=queue.using):
        _refuse_limits(queue, command)
        return _ACTIONS[command](queue, options)


def _refuse_limits(queue: DelayedQueue, command: str) -> None:
    if command in ("clear", "resume"):
        return
    if lack := why_not_limited(queue.kind, queue.using, holds=True):
        raise CommandError(lack, returncode=WRONG_USAGE)


def _set(queue: DelayedQueue, options: dict[str, Any]) -> bool:
    given = {name: options[name] for name in _ALL if options[name] is not None}
    rules = Groups(**given, fair=not options["unfair"])
    if not options["dry_run"]:
        queue.groups.set(rules)
    return True


def _limit(queue: DelayedQueue, options: dict[str, Any]) -> bool:
    given = {name: options[name] for name in _OWN}
    Groups(concurrency=given["concurrency"], rate=given["rate"])
    if not options["dry_run"]:
        queue.groups.limit(options["group"], **given)
    return True


def _clear(queue: DelayedQueue, options: dict[str, Any]) -> bool:
    if not options["dry_run"]:
        queue.groups.clear()
    return True


def _pause(queue: DelayedQueue, options: dict[str, Any]) -> bool:
    if options["dry_run"]:
        return not _is_paused(queue, options["group"])
    return queue.groups.pause(options["group"], options["why"], by=getpass.getuser())


def _resume(queue: DelayedQueue, options: dict[str, Any]) -> bool:
    if options["dry_run"]:
        return _is_paused(queue, options["group"])
    return queue.groups.resume(options["group"])


def _is_paused(queue: DelayedQueue, group: str) -> bool:
    return Limit.objects.is_paused(queue.kind, group=named(group), using=queue.using)


_ACTIONS: Final = {
    "set": _set, "limit": _limit, "clear": _clear, "pause": _pause, "resume": _resume
}  # fmt: skip


def _row(held: HeldGroup) -> dict[str, Any]:
    return {
        "group": held.name, "held": held.reason or None, "until": _instant(held.until),
        "due_since": _instant(held.due_since), "leased": held.leased, "at_most": held.concurrency,
    }  # fmt: skip


def _instant(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else from_milliseconds(milliseconds)


def _stored(queue: DelayedQueue) -> list[Limit]:
    return list(Limit.objects.using(queue.using).filter(kind=queue.kind).order_by("group"))


def _limits(row: Limit) -> dict[str, Any]:
    return {
        "group": row.group or None, "concurrency": row.concurrency, "weight": row.weight,
        "seconds_each": _seconds(row.interval), "burst": row.burst,
        "queue_seconds_each": _seconds(row.queue_interval), "queue_burst": row.queue_burst,
        "is_ordered": row.is_ordered, "paused_at": row.paused_at, "paused_by": row.paused_by,
        "reason": row.reason,
    }  # fmt: skip


def _seconds(interval: float | None) -> float | None:
    return None if interval is None else round(interval / 1000, 3)
