"""``manage.py queuemessages``: find a message, look at it, drop it, have it delivered now."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS

from delayed_queue.codecs import channel_of
from delayed_queue.management.base import QueueCommand, queue_named
from delayed_queue.management.tables import add_json, show
from delayed_queue.messages import MessageState
from delayed_queue.models import Message
from delayed_queue.queue.queue import DelayedQueue

_MOST_FOUND: Final = 100


class Command(QueueCommand):
    help = "Find messages by their keys, show one, drop it, or have it delivered now."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--database", default=DEFAULT_DB_ALIAS, help="database alias")
        commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
        find = commands.add_parser("find", help="the messages of a whole key, in every queue")
        find.add_argument("key")
        add_json(find)
        for name, words in (
            ("show", "one message and its last error, without its payload"),
            ("drop", "delete a message, whatever its state"),
            ("run-now", "make a scheduled message due"),
        ):
            one = commands.add_parser(name, help=words)
            one.add_argument("queue", help="a queue, or a kind as name|codec")
            one.add_argument("key")

    def handle(self, **options: Any) -> None:
        if options["command"] == "find":
            show(self.stdout, _found(options), as_json=options["json"], none="No such key.")
            return
        queue, key = queue_named(options["queue"], options["database"]), options["key"]
        acts = {"show": _shown, "drop": _drop, "run-now": _run_now}
        self.stdout.write(acts[options["command"]](queue, key))


def _found(options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = Message.objects.using(options["database"]).filter(key=options["key"]).order_by("kind")
    return [
        {
            "id": row.id, "queue": row.kind, "key": row.key, "due": row.scheduled_at,
            "tries": row.attempts, "lease": row.lease_id,
        }
        for row in rows.defer("payload", "headers")[:_MOST_FOUND]
    ]  # fmt: skip


def _missing(queue: DelayedQueue, key: str) -> CommandError:
    return CommandError(f"{queue.kind} has no message {key!r}.", returncode=1)


def _shown(queue: DelayedQueue, key: str) -> str:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    facts = {
        "queue": queue.kind, "key": found.key, "state": found.state.value,
        "due": f"{found.scheduled_at:%Y-%m-%d %H:%M:%S}", "tries": found.attempts,
        "lease": found.lease_id or "-", "error": found.last_error or "-",
    }  # fmt: skip
    return "\n".join(f"{name:6} {value}" for name, value in facts.items())


def _drop(queue: DelayedQueue, key: str) -> str:
    if not queue.drop_message(key):
        raise _missing(queue, key)
    return f"{key!r} was dropped from {queue.kind}."


def _run_now(queue: DelayedQueue, key: str) -> str:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    if found.state is not MessageState.SCHEDULED:
        raise CommandError(f"{key!r} is {found.state.value}, not scheduled.", returncode=1)
    # Of no lease: one that was claimed meanwhile stays with its holder.
    ids = Message.objects.using(queue.using).filter(kind=queue.kind, key=key)
    released = Message.objects.release(
        None, list(ids.values_list("id", flat=True)), using=queue.using
    )
    if not released:
        raise CommandError(f"{key!r} was leased meanwhile.", returncode=1)
    Message.objects.notify(channel_of(queue.kind), using=queue.using)
    return f"{key!r} of {queue.kind} is due now."
