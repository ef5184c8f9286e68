"""``manage.py queuemessages``: find messages; show, drop, release or deliver one now."""

from __future__ import annotations

from typing import Any, Final

from django.core.management.base import CommandError
from django.db.models import F, QuerySet
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.conf import get_settings
from delayed_queue.facade import DelayedQueue
from delayed_queue.management.arguments import FORMAT, QUEUE, arg, at_most, flag
from delayed_queue.management.base import Outcome, Row, Verb, VerbCommand, queue_of
from delayed_queue.management.tables import described
from delayed_queue.messages import MessageState, StoredMessage
from delayed_queue.models import Message
from delayed_queue.queue.base import wake_at_commit
from delayed_queue.queue.store.claim import NO_FLOOR

_MAX_FOUND: Final = 100
_MAX_LISTED: Final = 5_000


def _list(options: dict[str, Any]) -> list[Row]:
    kind = queue_of(options).kind
    # The comparison of due times lets the index serve the order: see ALL_TIMES.
    rows = Message.objects.using(options["database"]).filter(kind=kind, scheduled_at__gte=NO_FLOOR)
    return _rows(rows.order_by("scheduled_at", "id")[: options["limit"]])


def _find(options: dict[str, Any]) -> list[Row]:
    rows = Message.objects.using(options["database"]).filter(key=options["key"])
    return _rows(rows.order_by("kind")[:_MAX_FOUND])


def _rows(messages: QuerySet[Message]) -> list[Row]:
    renamed = {"queue": "kind", "due": "scheduled_at", "tries": "attempts", "lease": "lease_id"}
    columns = {name: F(column) for name, column in renamed.items()}
    rows: Any = messages.values("id", "key", **columns)
    return list(rows)


def _show(options: dict[str, Any]) -> Outcome:
    queue = queue_of(options)
    found = _read(queue, options["key"])
    facts = {
        "queue": queue.kind, "key": found.key, "state": found.state.value,
        "due": found.scheduled_at, "tries": found.attempts, "lease": found.lease_id,
        "error": found.last_error,
    }  # fmt: skip
    return Outcome(described(facts), facts)


def _act(options: dict[str, Any]) -> Outcome:
    """Run the action on one message; only show the message in a dry run."""
    if options["dry_run"]:
        return _show(options)
    queue, key, name = queue_of(options), options["key"], options["command"]
    done = _ACTIONS[name](queue, key)
    text = f"{key!r} of {queue.kind} {done}."
    return Outcome(text, {"queue": queue.kind, "key": key, "done": name})


def _drop(queue: DelayedQueue, key: str) -> str:
    if not queue.drop_message(key):
        raise _missing(queue, key)
    return "was dropped"


def _release(queue: DelayedQueue, key: str) -> str:
    found = _read(queue, key)
    if found.lease_id is None:
        raise CommandError(f"{key!r} is {found.state.value}, not leased.")
    _make_due(queue, key, found.lease_id)
    return "is due now: its lease was ended"


def _deliver_now(queue: DelayedQueue, key: str) -> str:
    found = _read(queue, key)
    if found.state is not MessageState.SCHEDULED:
        raise CommandError(f"{key!r} is {found.state.value}, not scheduled.")
    # Without a lease: a message that was claimed meanwhile stays with its holder.
    _make_due(queue, key, None)
    return "is due now"


_ACTIONS: Final = {"drop": _drop, "release": _release, "deliver-now": _deliver_now}


def _read(queue: DelayedQueue, key: str) -> StoredMessage:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    return found


def _missing(queue: DelayedQueue, key: str) -> CommandError:
    return CommandError(f"{queue.kind} has no message {key!r}.")


def _make_due(queue: DelayedQueue, key: str, lease_id: str | None) -> None:
    rows = Message.objects.using(queue.using).filter(kind=queue.kind, key=key)
    ids = list(rows.values_list("id", flat=True))
    if not Message.objects.release(lease_id, ids, using=queue.using):
        raise CommandError(f"{key!r} was leased or settled meanwhile.")
    wake_at_commit([queue.kind], queue.using)
    if get_settings().NOTIFY:
        Message.objects.tell_holders([lease_id] if lease_id else [], using=queue.using)


_KEY: Final = arg("key")
_COLUMNS: Final = "id queue key due tries lease"
_ONE: Final = (flag("--dry-run", _("only show the message")), FORMAT, QUEUE, _KEY)


class Command(VerbCommand):
    help = gettext_noop(
        "List messages, find them by key; show, drop, release or deliver one of them."
    )
    verbs = {
        "list": Verb(
            _("the messages of a queue, in due order"), _list,
            (QUEUE, at_most(25, _MAX_LISTED), FORMAT), "No messages.", _COLUMNS,
        ),
        "find": Verb(
            _("the messages with exactly this key, in all queues"),
            _find, (_KEY, FORMAT), "There is no such key.", _COLUMNS,
        ),
        "show": Verb(_("one message, without its payload"), _show, (FORMAT, QUEUE, _KEY)),
        "drop": Verb(_("delete a message in any state"), _act, _ONE),
        "release": Verb(_("end the lease of a message; it is due now"), _act, _ONE),
        "deliver-now": Verb(_("make a scheduled message due"), _act, _ONE),
    }  # fmt: skip
