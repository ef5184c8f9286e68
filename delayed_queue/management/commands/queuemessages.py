"""``manage.py queuemessages``: find messages; show, drop, release or deliver one now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.core.management.base import CommandError
from django.db.models import QuerySet
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.codecs import channel_of
from delayed_queue.conf import get_settings
from delayed_queue.facade import DelayedQueue
from delayed_queue.management.arguments import FORMAT, QUEUE, arg, count, flag
from delayed_queue.management.base import Told, Verb, VerbCommand, queue_named
from delayed_queue.management.tables import described
from delayed_queue.messages import MessageState, StoredMessage
from delayed_queue.models import Message
from delayed_queue.queue.store.claim import NO_FLOOR

_MAX_FOUND: Final = 100
_MAX_LISTED: Final = 5_000


def _list(options: dict[str, Any]) -> list[dict[str, Any]]:
    kind = queue_named(options["queue"], options["database"]).kind
    # The index of due times is for statements that compare them: see ALL_TIMES.
    rows = Message.objects.using(options["database"]).filter(kind=kind, scheduled_at__gte=NO_FLOOR)
    return _rows(rows.order_by("scheduled_at", "id")[: options["limit"]])


def _find(options: dict[str, Any]) -> list[dict[str, Any]]:
    rows = Message.objects.using(options["database"]).filter(key=options["key"])
    return _rows(rows.order_by("kind")[:_MAX_FOUND])


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


def _read(queue: DelayedQueue, key: str) -> StoredMessage:
    found = queue.read(key)
    if found is None:
        raise _missing(queue, key)
    return found


def _show(options: dict[str, Any]) -> Told:
    queue = queue_named(options["queue"], options["database"])
    found = _read(queue, options["key"])
    facts = {
        "queue": queue.kind, "key": found.key, "state": found.state.value,
        "due": found.scheduled_at, "tries": found.attempts, "lease": found.lease_id,
        "error": found.last_error,
    }  # fmt: skip
    return Told(described(facts), facts)


def _drop(queue: DelayedQueue, key: str) -> Any:
    if not queue.drop_message(key):
        raise _missing(queue, key)
    return _("%(key)r was dropped from %(queue)s.")


def _release(queue: DelayedQueue, key: str) -> Any:
    found = _read(queue, key)
    if found.lease_id is None:
        said = _("%(key)r is %(state)s, not leased.") % {"key": key, "state": found.state.value}
        raise CommandError(said, returncode=1)
    _make_due(queue, key, found.lease_id)
    return _("The lease of %(key)r in %(queue)s was ended; the message is due now.")


def _deliver_now(queue: DelayedQueue, key: str) -> Any:
    found = _read(queue, key)
    if found.state is not MessageState.SCHEDULED:
        said = _("%(key)r is %(state)s, not scheduled.") % {"key": key, "state": found.state.value}
        raise CommandError(said, returncode=1)
    # Under no lease: a message that was claimed meanwhile stays with its holder.
    _make_due(queue, key, None)
    return _("%(key)r of %(queue)s is due now.")


def _make_due(queue: DelayedQueue, key: str, lease_id: str | None) -> None:
    rows = Message.objects.using(queue.using).filter(kind=queue.kind, key=key)
    ids = list(rows.values_list("id", flat=True))
    if not Message.objects.release(lease_id, ids, using=queue.using):
        raise CommandError(_("%r was leased or settled meanwhile.") % key, returncode=1)
    if get_settings().NOTIFY:
        Message.objects.notify(channel_of(queue.kind), using=queue.using)
        Message.objects.tell_holders([lease_id] if lease_id else [], using=queue.using)


def _acting(act: Callable[[DelayedQueue, str], Any]) -> Callable[[dict[str, Any]], Told]:
    """Return what runs an action on one message, or shows the message in a dry run."""

    def run(options: dict[str, Any]) -> Told:
        if options["dry_run"]:
            return _show(options)
        queue, key = queue_named(options["queue"], options["database"]), options["key"]
        said = act(queue, key) % {"key": key, "queue": queue.kind}
        return Told(said, {"queue": queue.kind, "key": key, "done": options["command"]})

    return run


_KEY: Final = arg("key")
_LIMIT: Final = arg(
    "--limit", _("rows (default: 25)"), type=count(1, _MAX_LISTED), default=25,
    metavar="N",
)  # fmt: skip
_ONE: Final = (flag("--dry-run", _("only show the message")), FORMAT, QUEUE, _KEY)


class Command(VerbCommand):
    help = gettext_noop(
        "List messages, find them by key; show, drop, release or deliver one of them."
    )
    verbs = {
        "list": Verb(
            _("the messages of a queue, in due order"), _list, (QUEUE, _LIMIT, FORMAT),
            _("No messages."),
        ),
        "find": Verb(
            _("the messages with exactly this key, in all queues"),
            _find, (_KEY, FORMAT), _("There is no such key."),
        ),
        "show": Verb(
            _("one message, without its payload"), _show, (FORMAT, QUEUE, _KEY)
        ),
        "drop": Verb(_("delete a message in any state"), _acting(_drop), _ONE),
        "release": Verb(
            _("end the lease of a message; it is due now"), _acting(_release), _ONE
        ),
        "deliver-now": Verb(
            _("make a scheduled message due"), _acting(_deliver_now), _ONE
        ),
    }  # fmt: skip
