"""Operations on tasks in the admin: cancel, retry now, run again."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.priorities import split_kind
from delayed_queue.tasks.store import hasten
from delayed_queue.tasks.under_way import find_task, id_of


class TaskOperation(Operation):
    """An operation on tasks with one of ``statuses``, through the backend of each task."""

    is_separate = True
    statuses: tuple[str, ...]
    # A task that cannot be imported, or a backend that is gone.
    failed = _("because it failed (%(error)s)")
    noun = ngettext_lazy("%(count)s task", "%(count)s tasks", "count")

    def fits(self, row: Any) -> bool:
        is_under_way = getattr(row, "message", None) is not None
        return ("" if is_under_way else row.status) in self.statuses

    def parts(self, call: Call) -> Iterable[Call]:
        """Return a call for each task, in the database of its backend."""
        from delayed_queue.tasks.backend import declared

        aliases = {name: backend.settings.database for name, backend in declared()}
        for part in super().parts(call):
            if row := find_task(part.tokens[0], call.queryset):
                using = aliases.get(row.backend, call.using)
                yield replace(part, queryset=call.queryset.using(using))

    def rows(self, call: Call, report: Report) -> list[Any]:
        row = find_task(call.tokens[0], call.queryset.defer(None))
        return [row] if row is not None else []

    def name_of(self, row: Any) -> str:
        return str(id_of(row))


class CancelTask(TaskOperation):
    name, label, past = "cancel_tasks", _("Cancel"), _("Cancelled")
    help = _("Remove a waiting task; ask a running task to stop.")
    refusal = _("because it has ended")
    permission = "delayed_queue_tasks.cancel_task"
    statuses = ("",)

    def act(self, row: Any, call: Call) -> bool:
        message = getattr(row, "message", None)
        if message is None:
            return False
        found: bool = backend_of(row).cancel_message(
            id_of(row), row.task, message.pk, message.created_ms, message.batch_id
        )
        return found


class RetryTask(TaskOperation):
    name, past = "retry_now", _("Made due")
    refusal = _("because it neither waits nor is a dead letter")
    label = _("Retry now: waiting tasks and dead letters")
    permission = "delayed_queue_tasks.rerun_task"
    statuses = ("", "FAILED")

    def act(self, row: Any, call: Call) -> bool:
        using = backend_of(row).settings.database
        held = {"key": row.key or id_of(row), "kind": row.kind}
        message = Message.objects.using(using).filter(**held).first()
        if message is not None:
            return hasten(message.pk, using=using)
        letters = DeadLetter.objects.using(using).filter(**held).order_by("-pk")
        ids = list(letters.values_list("pk", flat=True)[:1])
        return bool(ids) and any(
            each.created is not None for each in DeadLetter.objects.redrive(ids, using=using)
        )


class RunAgain(TaskOperation):
    """Enqueues the task as it is now, with its earlier arguments."""

    name, past = "run_again", _("Enqueued again")
    label = _("Run again with the same arguments")
    permission = "delayed_queue_tasks.rerun_task"
    statuses = ("SUCCESSFUL", "FAILED")

    def act(self, row: Any, call: Call) -> bool:
        from delayed_queue.tasks.payloads import task_at

        said = json.loads(bytes(row.payload))
        name, priority = split_kind(row.kind)
        task = task_at(row.task).using(backend=row.backend, queue_name=name, priority=priority)
        task.enqueue(*said.get("args", ()), **said.get("kwargs", {}))
        return True


def backend_of(row: TaskResult) -> Any:
    # Imported late: without a backend in TASKS there may be no tasks to import.
    from delayed_queue.tasks.backend import declared

    found = dict(declared()).get(row.backend)
    if found is None:
        raise LookupError(f"TASKS has no backend {row.backend!r}.")
    return found
