"""``manage.py queuebatches``: list the unfinished batches; show or cancel one of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from delayed_queue.db.clock import database_now
from delayed_queue.management.arguments import DRY_RUN, FORMAT, arg, at_most, count
from delayed_queue.management.base import Outcome, Row, Verb, VerbCommand, wrong_usage
from delayed_queue.management.tables import described, lines
from delayed_queue.models import StoredBatch
from delayed_queue.observe.stored_batches import count_left, first_left

_MAX_LISTED: Final = 1_000
_WORDS: Final = {"expired": "lease expired"}


def _list(options: dict[str, Any]) -> list[Row]:
    rows = _stored(options).order_by("id")[: options["limit"]]
    return _facts(list(rows), options["database"])


def _stored(options: dict[str, Any]) -> Any:
    return StoredBatch.objects.using(options["database"]).defer("then_payload", "then_headers")


def _facts(rows: Sequence[StoredBatch], using: str) -> list[Row]:
    now, left = database_now(using), count_left([row.pk for row in rows], using=using)
    return [
        {
            "id": row.pk, "queue": row.kind, "then_queue": row.then_kind, "then_key": row.then_key,
            "state": "open" if row.closed_at is None else "closed", "created": row.created_at,
            "age": str(timedelta(seconds=int((now - row.created_at).total_seconds()))),
            "done": row.done, "dead": row.dead, "dropped": row.dropped, "expired": row.expired,
            "left": left[row.pk].value, "left_is_cut": left[row.pk].is_cut,
        }
        for row in rows
    ]  # fmt: skip


def _show(options: dict[str, Any]) -> Outcome:
    row, using = _named(options), options["database"]
    (facts,) = _facts([row], using)
    members = [
        {
            "queue": each.kind, "key": each.key, "state": _WORDS.get(each.state, each.state),
            "time": each.time, "tries": each.attempts, "worker": each.worker or None,
            "reason": each.reason or None,
        }
        for each in first_left(row.pk, options["limit"], using=using)
    ]  # fmt: skip
    table = ["", *lines(members)] if members else []
    return Outcome("\n".join([described(facts), *table]), {**facts, "members": members})


def _named(options: dict[str, Any]) -> StoredBatch:
    row: StoredBatch | None = _stored(options).filter(pk=options["id"]).first()
    if row is None:
        text = f"There is no batch {options['id']}: it has finished, was cancelled, or never began."
        raise wrong_usage(text)
    return row


def _cancel(options: dict[str, Any]) -> Outcome:
    """Cancel the batch; only report it in a dry run."""
    row, using = _named(options), options["database"]
    was_changed, text = False, "would be cancelled"
    if not options["dry_run"]:
        was_changed = StoredBatch.objects.cancel(row.pk, using=using)
        text = "was cancelled" if was_changed else "has meanwhile been cancelled or finished"
    facts = {"id": row.pk, "queue": row.kind, "was_changed": was_changed}
    return Outcome(f"Batch {row.pk} of {row.kind} {text}.", facts)


_ID: Final = arg("id", _("the id of a batch"), type=count(1, 2**63 - 1))


class Command(VerbCommand):
    help = gettext_noop("List the unfinished batches; show or cancel one of them.")
    verbs = {
        "list": Verb(
            _("the unfinished batches, the oldest first"), _list,
            (at_most(25, _MAX_LISTED), FORMAT),
            "No batch is unfinished.",
            "id queue then_queue then_key age state done dead dropped expired left left_is_cut",
        ),
        "show": Verb(
            _("one batch, with the first members left and why"), _show,
            (_ID, at_most(25, _MAX_LISTED), FORMAT),
        ),
        "cancel": Verb(
            _("never offer its message; its members stay as ordinary messages"), _cancel,
            (_ID, DRY_RUN, FORMAT),
        ),
    }  # fmt: skip
