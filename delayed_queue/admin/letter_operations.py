"""What an operator can do to dead letters: redrive, redrive over the living, drop."""

from __future__ import annotations

from typing import Final, cast

from django.contrib.admin.models import DELETION

from delayed_queue.admin.message_operations import wake
from delayed_queue.admin.operations import (
    Call,
    Entry,
    Operation,
    Report,
    lock,
    parse_ids,
    record,
)
from delayed_queue.admin.rows import LetterRow
from delayed_queue.models import DeadLetter
from delayed_queue.queue.store.dead_letters import DeadLetterManager

ALIVE: Final = "as a message lives under their key, or a newer letter of it came first"


def _letters() -> DeadLetterManager[DeadLetter]:
    return DeadLetter.objects


class Redrive(Operation):
    name = "redrive"
    label = "Redrive"
    help = "Offer the letter again, due now, as a first attempt; a living message is left alone."
    permission = "delayed_queue.redrive_deadletter"
    overwrites = False

    def run(self, call: Call) -> Report:
        report = Report("Redriven", "dead letter")
        with call.transaction():
            ids = parse_ids(call.tokens)
            # Before the letters: who deletes a job locks it first, then its letters.
            _letters().hold_jobs(ids, using=call.using)
            rows = cast("list[LetterRow]", lock(call, ids, report))
            answers = _letters().redrive(
                [row.id for row in rows], overwrite=self.overwrites, using=call.using
            )
            created = {answer.id: answer.created for answer in answers}
            entries = []
            for row in rows:
                if created.get(row.id) is None:
                    report.leave(ALIVE, row.key)
                    continue
                outcome = "created" if created[row.id] else "overwritten"
                report.changed.append(f"{row.key} ({outcome})")
                entries.append(Entry(row, f"Redriven, {outcome}. {_identity(row)}"))
            record(call, DELETION, entries)
            wake({entry.row.kind for entry in entries}, call.using)
        return report


class Overwrite(Redrive):
    name = "overwrite"
    label = "Redrive, overwriting"
    help = "Offer the letter again even if its key lives again: that message is replaced."
    warning = (
        "Where a message lives under the key of one of these letters, it is replaced: its payload "
        "and schedule are lost, and a lease on it ends."
    )
    overwrites = True


class DropLetter(Operation):
    name = "drop"
    label = "Drop"
    help = "Delete the dead letter for good."
    permission = "delayed_queue.drop_deadletter"
    warning = "These dead letters are deleted for good, payloads and errors with them."
    is_destructive = True

    def run(self, call: Call) -> Report:
        report = Report("Dropped", "dead letter")
        with call.transaction():
            rows = cast("list[LetterRow]", lock(call, parse_ids(call.tokens), report))
            _letters().drop([row.id for row in rows], using=call.using)
            report.changed += [row.key for row in rows]
            record(call, DELETION, [Entry(row, f"Dropped. {_identity(row)}") for row in rows])
        return report


def _identity(row: LetterRow) -> str:
    return f"Queue {row.kind}, key {row.key!r}."


LETTER_OPERATIONS: Final[tuple[Operation, ...]] = (Redrive(), Overwrite(), DropLetter())
