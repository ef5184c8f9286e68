"""What an operator can do to schedules: enable, pause, run now."""

from __future__ import annotations

from typing import Any, Final

from django.contrib.admin.models import CHANGE
from django.db import transaction

from delayed_queue.admin.operations import (
    Call,
    Entry,
    Operation,
    Report,
    lock,
    parse_ids,
    record,
)
from delayed_queue.admin.schedule_rules import declared_entry
from delayed_queue.cron.keeper import installer_of
from delayed_queue.cron.service import CronService
from delayed_queue.messages import OfferOutcome, to_milliseconds
from delayed_queue.models import Schedule
from delayed_queue.queue.queue import DelayedQueue


class ScheduleOperation(Operation):
    """An operation on schedules, each row locked while it is done."""

    past: str

    def apply(self, row: Any, call: Call) -> str:
        """Change the row; return why it was left alone, or nothing."""
        raise NotImplementedError

    def note(self, row: Any) -> str:
        """Return what the audit says besides the name of the schedule."""
        return ""

    def run(self, call: Call) -> Report:
        report = Report(self.past, "schedule")
        with call.transaction():
            entries = []
            for row in lock(call, parse_ids(call.tokens), report):
                if why := self.apply(row, call):
                    report.leave(why, row.key_prefix)
                    continue
                report.changed.append(row.key_prefix)
                entries.append(Entry(row, self._audit(row)))
            record(call, CHANGE, entries)
        return report

    def _audit(self, row: Any) -> str:
        return f"{self.past}. Queue {row.kind}, key prefix {row.key_prefix!r}.{self.note(row)}"


class Enable(ScheduleOperation):
    name = "enable"
    label = "Enable"
    help = "Workers write its ticks ahead again within ten seconds; nothing is caught up."
    permission = "delayed_queue.pause_schedule"
    past = "Enabled"

    def fits(self, row: Any) -> bool:
        return not row.is_enabled

    def apply(self, row: Any, call: Call) -> str:
        if row.is_enabled:
            return "enabled already"
        row.is_enabled = True
        row.save(using=call.using, update_fields=["is_enabled"])
        return ""


class Pause(ScheduleOperation):
    name = "pause"
    label = "Pause"
    help = "Take back its pending ticks, and write none until it is enabled."
    permission = "delayed_queue.pause_schedule"
    past = "Paused"

    def fits(self, row: Any) -> bool:
        return bool(row.is_enabled)

    def apply(self, row: Any, call: Call) -> str:
        if not row.is_enabled:
            return "paused already"
        row.is_enabled = False
        row.save(using=call.using, update_fields=["is_enabled"])
        row.taken_back = take_back(row, call.using)
        return ""

    def note(self, row: Any) -> str:
        return f" Pending ticks taken back: {row.taken_back}."


class RunNow(ScheduleOperation):
    name = "run_now"
    label = "Run now"
    help = "Offer one message with its payload, due now, beside its ticks; paused or not."
    permission = "delayed_queue.run_schedule"
    past = "Run"

    def apply(self, row: Any, call: Call) -> str:
        row.run_key = f"{row.key_prefix}/run-now-{to_milliseconds(row.read_at)}"
        try:
            # Whatever a generator did to the database before it raised is undone.
            with transaction.atomic(using=call.using):
                return self._offer(row, call.using)
        # A generator is the project's own, and may raise anything.
        except Exception as error:
            return f"as its payload could not be offered ({type(error).__name__}: {error})"

    def _offer(self, row: Any, using: str) -> str:
        entry = declared_entry(row.kind, row.key_prefix)
        if entry is not None:
            queue, payload = installer_of(entry, using).queue, entry.generate(row.read_at)
        elif row.declared_in:
            return f"as its code, {row.declared_in}, is not loaded in this process"
        else:
            queue = DelayedQueue(row.queue, codec=row.codec, kind=row.kind, using=using)
            payload = row.payload
        if queue.offer_if_not_exists(row.run_key, payload) is OfferOutcome.IGNORED:
            return "run in this very millisecond already"
        return ""

    def note(self, row: Any) -> str:
        return f" Offered {row.run_key!r}."


def take_back(row: Schedule, using: str) -> int:
    """Remove the pending ticks of the schedule; return how many there were.

    Of the configurations before too: a tick that was being handled outlives its configuration,
    and waits for a retry when its handler fails.
    """
    # No payload is read, so that a codec which only the workers know does not matter.
    service = CronService(DelayedQueue(row.queue, kind=row.kind, using=using))
    hashes = dict.fromkeys([row.config_hash, *row.retired_hashes])
    return sum(service.uninstall_tick(each, row.key_prefix) for each in hashes if each)


SCHEDULE_OPERATIONS: Final[tuple[Operation, ...]] = (RunNow(), Pause(), Enable())
