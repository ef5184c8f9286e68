"""``manage.py queuemessages``: find messages; show, drop, release or deliver one now."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import CommandError
from django.db.models import QuerySet
from django.utils.translation import gettext as _
from django.utils.translation import gettext_noop

from delayed_queue.codecs import channel_of
from delayed_queue.conf import get_settings
from delayed_queue.management.base import (
    QueueCommand,
    add_database,
    add_format,
    count,
    described,
    queue_named,
    show,
    tell,
)
from delayed_queue.messages import MessageState
from delayed_queue.models import Message
from delayed_queue.queue.queue import DelayedQueue
from delayed_queue.queue.store.claim import NO_FLOOR

_MOST_FOUND: Final = 100
_MOST_LISTED: Final = 5_000


class Command(QueueCommand):
    help = gettext_noop(
        "List messages, find them by key; show, drop, release or deliver one of them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        listed = commands.add_parser("list", help=_("the messages of a queue, in due order"))
        listed.add_argument("queue", help=_("a queue, or a kind as name|codec"))
        listed.add_argument(
            "--limit", type=count(1, _MOST_LISTED), default=25, metavar="N",
            help=_("rows (default: 25)"),
        )  # fmt: skip
        find = commands.add_parser(
            "find", help=_("the messages with exactly this key, in all queues")
        )
        find.add_argument("key")
        show_one = commands.add_parser("show", help=_("one message, without its payload"))
        add_format(listed)
        add_format(find)
        add_format(show_one)
        for name, words in (
            ("drop", _("delete a message in any state")),
            ("release", _("end the lease of a message; it is due now")),
            ("deliver-now", _("make a scheduled message due")),
        ):
            one = commands.add_parser(name, help=words)
            one.add_argument("--dry-run", action="store_true", help=_("only show the message"))
            add_format(one)
        for one in (show_one, *(commands.choices[each] for each in _ACTS)):
            one.add_argument("queue", help=_("a queue, or a kind as name|codec"))
            one.add_argument("key")
        add_database(parser, commands)

    def handle(self, **options: Any) -> None:
        command, style = options["command"], options["format"]
        if command in ("list", "find"):
            rows = _listed(options) if command == "list" else _found(options)
            none = _("No messages.") if command == "list" else _("There is no such key.")
            show(self.stdout, rows, style, none=none)
            return
        queue, key = queue_named(options["queue"], options["database"]), options["key"]
        if command == "show" or options["dry_run"]:
            facts = _shown(queue, key)
            said = described(facts)
        else:
            said = _ACTS[command](queue, key)
            facts = {"queue": queue.kind, "key": key, "done": command}
        tell(self.stdout, said, style, **facts)


def _listed(options: dict[str, Any]) -> list[dict[str, Any]]:
    kind = queue_named(options["queue"], options["database"]).kind
    # The index of due times is for statements that compare them: see ALL_TIMES.
    rows = Message.objects.using(options["database"]).filter(kind=kind, scheduled_at__gte=NO_FLOOR)
    return _rows(rows.order_by("scheduled_at", "id")[: options["limit"]])


def _found(options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = Message.objects.using(options["database"]).filter(key=options["key"])
    return _rows(rows.order_by("kind")[:_MOST_FOUND])


def _rows(messages: QuerySet[Message]) -> list[dict[str, Any]]:
    return [
        {
            "id": row.id, "queue": row.kind, "key": row.key, "due": row.scheduled_at,
            "tries": row.attempts, "lease": row.lease_id,
        }
        for row in messages.defer("payload", "headers")
    ]  # fmt: skip


def _missing(queue: DelayedQueue, key: str) -> CommandError:
    said = _("%(queue)s has no message %(key)r.") % {"queue": queue.kind, "key": key}
    return CommandError(said, returncode=1)


def _shown(queue: DelayedQueue, key: str) -> dict[str, Any]:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    return {
        "queue": queue.kind, "key": found.key, "state": found.state.value,
        "due": found.scheduled_at, "tries": found.attempts, "lease": found.lease_id,
        "error": found.last_error,
    }  # fmt: skip


def _drop(queue: DelayedQueue, key: str) -> str:
    if not queue.drop_message(key):
        raise _missing(queue, key)
    return _("%(key)r was dropped from %(queue)s.") % {"key": key, "queue": queue.kind}


def _release(queue: DelayedQueue, key: str) -> str:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    if found.lease_id is None:
        said = _("%(key)r is %(state)s, not leased.") % {"key": key, "state": found.state.value}
        raise CommandError(said, returncode=1)
    _make_due(queue, key, found.lease_id)
    said = _("The lease of %(key)r in %(queue)s was ended; the message is due now.")
    return said % {"key": key, "queue": queue.kind}


def _deliver_now(queue: DelayedQueue, key: str) -> str:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    if found.state is not MessageState.SCHEDULED:
        said = _("%(key)r is %(state)s, not scheduled.") % {"key": key, "state": found.state.value}
        raise CommandError(said, returncode=1)
    # Of no lease: one that was claimed meanwhile stays with its holder.
    _make_due(queue, key, None)
    return _("%(key)r of %(queue)s is due now.") % {"key": key, "queue": queue.kind}


def _make_due(queue: DelayedQueue, key: str, lease_id: str | None) -> None:
    rows = Message.objects.using(queue.using).filter(kind=queue.kind, key=key)
    ids = list(rows.values_list("id", flat=True))
    if not Message.objects.release(lease_id, ids, using=queue.using):
        raise CommandError(_("%r was leased or settled meanwhile.") % key, returncode=1)
    if get_settings().NOTIFY:
        Message.objects.notify(channel_of(queue.kind), using=queue.using)
        Message.objects.tell_holders([lease_id] if lease_id else [], using=queue.using)


_ACTS: Final = {"drop": _drop, "release": _release, "deliver-now": _deliver_now}
