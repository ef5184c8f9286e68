"""``manage.py queuegroups``: the groups of a queue, their state and their limits."""

from __future__ import annotations

import getpass
from typing import Any, Final

from django.db import transaction
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.exceptions import did_you_mean
from delayed_queue.facade import DelayedQueue
from delayed_queue.management.arguments import (
    DRY_RUN,
    FORMAT,
    QUEUE,
    WHY,
    Argument,
    arg,
    at_most,
    flag,
    number,
)
from delayed_queue.management.base import (
    Outcome,
    Row,
    Verb,
    VerbCommand,
    optional_time,
    queue_of,
    wrong_usage,
)
from delayed_queue.models import DeadLetter, Limit, Message
from delayed_queue.queue.groups import GroupService, named, why_not_limited
from delayed_queue.retries import MOST, ON_DEAD, ORDERS, Groups

_MAX_KNOWN: Final = 1_000
_ALL: Final = ("concurrency", "rate", "burst", "queue_rate", "queue_burst", "order", "on_dead")
_OWN: Final = ("concurrency", "weight", "rate", "burst")


def _list(options: dict[str, Any]) -> list[Row]:
    return [
        {
            "group": held.name, "held": held.reason or None, "until": optional_time(held.until),
            "due_since": optional_time(held.due_since), "leased": held.leased,
            "at_most": held.concurrency,
        }
        for held in queue_of(options).groups.held(options["limit"])
    ]  # fmt: skip


def _list_limits(options: dict[str, Any]) -> list[Row]:
    queue = queue_of(options)
    return [
        {
            "group": row.group or None, "concurrency": row.concurrency, "weight": row.weight,
            "seconds_each": _seconds(row.interval), "burst": row.burst,
            "queue_seconds_each": _seconds(row.queue_interval), "queue_burst": row.queue_burst,
            "is_ordered": row.is_ordered, "paused_at": row.paused_at, "paused_by": row.paused_by,
            "reason": row.reason,
        }
        for row in Limit.objects.using(queue.using).filter(kind=queue.kind).order_by("group")
    ]  # fmt: skip


def _seconds(interval: float | None) -> float | None:
    return None if interval is None else round(interval / 1000, 3)


def _change(options: dict[str, Any]) -> Outcome:
    queue, verb, group = queue_of(options), options["command"], options.get("group")
    if group is not None and not options["force"]:
        _check_group(queue, group)
    of = queue.kind if group is None else f"{queue.kind}, group {named(group)},"
    was_changed = _changed(queue, verb, options)
    if not was_changed:
        text = "is paused already" if verb == "pause" else "is not held"
    else:
        text = "would be changed" if options["dry_run"] else "is changed"
    was_changed = was_changed and not options["dry_run"]
    facts = {"queue": queue.kind, "group": group, "was_changed": was_changed}
    return Outcome(f"{of} {text}.", facts)


def _check_group(queue: DelayedQueue, group: str) -> None:
    """Raise CommandError for a group without a message, dead letter, pause or limit."""
    of_group = {"kind": queue.kind, "group": group}
    messages = Message.objects.using(queue.using).filter(**of_group)
    # By the indexes of waiting and of leased messages.
    found = (
        messages.filter(lease_id__isnull=True), messages.filter(lease_id__isnull=False),
        Limit.objects.using(queue.using).filter(**of_group),
        DeadLetter.objects.using(queue.using).filter(**of_group),
    )  # fmt: skip
    if group and not any(rows.exists() for rows in found):
        limited = Limit.objects.using(queue.using).filter(kind=queue.kind)
        known = {each.name for each in queue.groups.held(_MAX_KNOWN)}
        known |= set(limited.values_list("group", flat=True)[:_MAX_KNOWN])
        similar = did_you_mean(group, known - {""})
        raise wrong_usage(
            f"{queue.kind} has no group {group!r}.{similar} --force sets it up in advance."
        )


def _changed(queue: DelayedQueue, verb: str, options: dict[str, Any]) -> bool:
    """Change the limits, if the queue can have any; roll back a dry run."""
    with transaction.atomic(using=queue.using):
        needs_limits = verb not in ("clear", "resume")
        if needs_limits and (lack := why_not_limited(queue.kind, queue.using, holds=True)):
            raise wrong_usage(lack)
        was_changed = _act(queue.groups, verb, options)
        transaction.set_rollback(options["dry_run"], using=queue.using)
    return was_changed


def _act(groups: GroupService, verb: str, options: dict[str, Any]) -> bool:
    match verb:
        case "pause":
            return groups.pause(options["group"], options["why"], by=getpass.getuser())
        case "resume":
            return groups.resume(options["group"])
        case "limit":
            groups.limit(options["group"], **{name: options[name] for name in _OWN})
        case "clear":
            groups.clear()
        case _:
            given = {name: options[name] for name in _ALL if options[name] is not None}
            groups.set(Groups(**given, fair=not options["unfair"]))
    return True


def _limit_option(name: str) -> Argument:
    choices = {"order": ORDERS, "on_dead": ON_DEAD}.get(name)
    option = f"--{name.replace('_', '-')}"
    if name in ("concurrency", "weight", "burst", "queue_burst"):
        return number(option, _("see the guide"), 1, MOST)
    return arg(option, _("see the guide"), choices=choices)


_GROUP: Final = (
    arg("group", _("a group")),
    flag("--force", _("also for a group that is not known yet")),
)


class Command(VerbCommand):
    help = gettext_noop(
        "Show which groups of a queue are held back, and why; set limits, pause and resume groups."
    )
    verbs = {
        "list": Verb(
            _("groups that have messages, held ones first"),
            _list, (QUEUE, at_most(100, MOST), FORMAT),
        ),
        "limits": Verb(_("the limits that are set"), _list_limits, (QUEUE, FORMAT)),
        "set": Verb(
            _("set the limits of all groups, replacing the earlier ones"), _change,
            (QUEUE, *map(_limit_option, _ALL),
             flag("--unfair", _("most overdue first")), DRY_RUN, FORMAT),
        ),
        "limit": Verb(
            _("set the limits of one group, replacing the earlier ones"), _change,
            (QUEUE, *_GROUP, *map(_limit_option, _OWN), DRY_RUN, FORMAT),
        ),
        "clear": Verb(
            _("remove the limits of all groups"), _change, (QUEUE, DRY_RUN, FORMAT)
        ),
        "pause": Verb(
            _("pause a group: deliver none of its messages"), _change,
            (QUEUE, *_GROUP, WHY, DRY_RUN, FORMAT),
        ),
        "resume": Verb(
            _("resume a group; its dead letters no longer block it"), _change,
            (QUEUE, *_GROUP, DRY_RUN, FORMAT),
        ),
    }  # fmt: skip
