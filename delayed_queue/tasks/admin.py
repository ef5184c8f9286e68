"""The pages of tasks: tasks under way, results, and operations on both."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db import router
from django.db.models import BinaryField, F, Func, IntegerField, QuerySet, Value
from django.db.models.functions import Greatest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.filters import (
    KIND,
    LEASE,
    WORKER,
    KindFilter,
    LeaseFilter,
    StateFilter,
    WorkerFilter,
)
from delayed_queue.admin.formats import column
from delayed_queue.admin.message_operations import MESSAGE_OPERATIONS, Group, MessageOperation
from delayed_queue.admin.messages import MessageAdmin
from delayed_queue.admin.operating import OperatingAdmin
from delayed_queue.admin.operations import Call, Operation, Report, primary_keys
from delayed_queue.db.clock import database_now
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter, Message
from delayed_queue.observe.overview import MAX_KINDS
from delayed_queue.tasks.ids import is_id
from delayed_queue.tasks.models import TaskResult, TaskUnderWay
from delayed_queue.tasks.priorities import kind_of_priority, split_kind
from delayed_queue.tasks.store import hasten, priorities_by_queue, task_names

_PAGE: Final = 50
_STATES: Final = {
    "": ("leased", _("not finished")), "FAILED": ("alarm", _("failed")),
    "SUCCESSFUL": ("due", _("done")),
}  # fmt: skip


class StatusFilter(admin.SimpleListFilter):
    """Only failed tasks: they have an index of their own, and the others are too many."""

    title, parameter_name = _("status"), "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:
        return [("FAILED", _("failed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(status="FAILED") if self.value() == "FAILED" else queryset


class TaskFilter(admin.SimpleListFilter):
    """By the path of the task: the stored paths, read by a loose index scan."""

    title, parameter_name = _("task"), "task"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = task_names(MAX_KINDS, using=model_admin.get_queryset(request).db)
        return [(each, each.rpartition(".")[2]) for each in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(task=self.value())


class TaskOperation(Operation):
    """An operation on tasks with one of ``statuses``, through the backend of each task."""

    is_separate = True
    statuses: tuple[str, ...]
    # Why a task was skipped.
    refusal: Any
    # A task that cannot be imported, or a backend that is gone.
    failed = _("because it failed (%(error)s)")
    noun = ngettext_lazy("%(count)s task", "%(count)s tasks", "count")

    def fits(self, row: Any) -> bool:
        return row.status in self.statuses

    def parts(self, call: Call) -> Iterable[Call]:
        """Return a call for each task, in the database of its backend."""
        from delayed_queue.tasks.backend import declared

        aliases = {name: backend.settings.database for name, backend in declared()}
        for row in call.queryset.filter(pk__in=primary_keys(call)):
            using = aliases.get(row.backend, call.using)
            yield replace(call, queryset=call.queryset.using(using), tokens=[str(row.pk)])

    def rows(self, call: Call, report: Report) -> list[Any]:
        return list(call.queryset.filter(pk__in=call.tokens))

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return self.act(row) or self.refusal

    def act(self, row: TaskResult) -> bool:
        """Do it through the backend; return whether anything changed."""
        raise NotImplementedError

    def name_of(self, row: Any) -> str:
        return str(row.pk)


class CancelTask(TaskOperation):
    name, label, past = "cancel_tasks", _("Cancel"), _("Cancelled")
    refusal: Any = _("because it has ended")
    permission = "delayed_queue_tasks.cancel_task"
    statuses = ("",)

    def act(self, row: TaskResult) -> bool:
        cancelled: bool = _backend_of(row).cancel(str(row.pk))
        return cancelled


class RetryTask(TaskOperation):
    name, past = "retry_now", _("Made due")
    refusal: Any = _("because it neither waits nor is a dead letter")
    label = _("Retry now: waiting tasks and dead letters")
    permission = "delayed_queue_tasks.rerun_task"
    statuses = ("", "FAILED")

    def act(self, row: TaskResult) -> bool:
        using = _backend_of(row).settings.database
        key = row.key or str(row.pk)
        message = Message.objects.using(using).filter(key=key, kind=row.kind).first()
        if message is not None:
            return hasten(message.pk, using=using)
        letters = DeadLetter.objects.using(using).filter(key=key, kind=row.kind).order_by("-pk")
        ids = list(letters.values_list("pk", flat=True)[:1])
        return bool(ids) and any(
            each.created is not None for each in DeadLetter.objects.redrive(ids, using=using)
        )


class RunAgain(TaskOperation):
    """Enqueues the task as it is now, with its earlier arguments."""

    name, past = "run_again", _("Enqueued again")
    refusal: Any = ""
    label = _("Run again with the same arguments")
    permission = "delayed_queue_tasks.rerun_task"
    statuses = ("SUCCESSFUL", "FAILED")

    def act(self, row: TaskResult) -> bool:
        from delayed_queue.tasks.payloads import task_at

        _backend_of(row)
        said = json.loads(bytes(row.payload))
        name, priority = split_kind(row.kind)
        task = task_at(row.task).using(backend=row.backend, queue_name=name, priority=priority)
        task.enqueue(*said.get("args", ()), **said.get("kwargs", {}))
        return True


def _backend_of(row: TaskResult) -> Any:
    # Imported late: without a backend in TASKS there may be no tasks to import.
    from delayed_queue.tasks.backend import declared

    found = dict(declared()).get(row.backend)
    if found is None:
        raise LookupError(f"TASKS has no backend {row.backend!r}.")
    return found


@admin.register(TaskResult)
class TaskResultAdmin(OperatingAdmin):
    """Tasks that have run, or report progress; waiting ones are messages of their queue."""

    operations = (CancelTask(), RetryTask(), RunAgain())
    list_heading = _("Tasks")
    list_display = ("path", "short_id", "queue", "state", "attempts", "duration", "progress")
    list_filter = (StatusFilter, TaskFilter)
    search_fields = ("task",)
    search_help_text = _("The full path of a task, or the id of a result.")
    ordering = ("-id",)
    list_per_page = _PAGE
    change_form_template = "admin/delayed_queue/row_detail.html"
    fields = (
        "state", "progress", "id", "task", "queue", "times", "duration", "attempts", "workers",
        "arguments", "value", "failures",
    )  # fmt: skip
    readonly_fields = fields

    path = column(_("task"), lambda row: formats.dotted(row.task))
    short_id = column(
        _("id"), lambda row: format_html('<span title="{}">{}…</span>', row.pk, str(row.pk)[:13])
    )
    state = column(_("status"), lambda row: formats.state(*_STATES[row.status]))
    queue = column(_("queue"), lambda row: _queue_label(row.kind))
    attempts = column(_("attempts"), lambda row: len(row.worker_ids))
    duration = column(_("took"), lambda row: _duration(row))
    workers = column(_("workers"), lambda row: ", ".join(each or "—" for each in row.worker_ids))
    progress = column(_("progress"), lambda row: progress_of(row))
    arguments = column(
        _("arguments"), lambda row: formats.block(bytes(row.payload).decode(errors="replace"))
    )

    def title_of(self, row: Any) -> str:
        return str(row.task)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Hide arguments, values and errors without the permission to see payloads."""
        if self.may(request, "delayed_queue.view_payload"):
            return self.fields
        return tuple(
            each for each in self.fields if each not in ("arguments", "value", "failures")
        )  # fmt: skip

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return (queryset.filter(pk=term) if is_id(term) else queryset.filter(task=term)), False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The list shows none of these, and they may be large.
        found: QuerySet[Any] = super().get_queryset(request)
        return found.defer("payload", "return_value", "errors")

    @admin.display(description=_("timeline"))
    def times(self, row: TaskResult) -> SafeString:
        is_later, is_retried = row.scheduled_at != row.enqueued_at, len(row.worker_ids) > 1
        events: list[tuple[Any, Any]] = [
            (row.enqueued_at, _("enqueued")),
            (row.scheduled_at if is_later else None, _("scheduled")),
            (row.started_at, _("first attempt started")),
            (row.last_attempted_at if is_retried else None, _("last attempt started")),
            (row.finished_at, _("finished")),
            (row.cancelled_at, _("cancelled")),
        ]
        return formats.timeline(events, database_now(router.db_for_read(TaskResult)))

    @admin.display(description=_("return value"))
    def value(self, row: TaskResult) -> SafeString:
        if row.status != TaskResult.Status.SUCCESSFUL:
            return formats.NOTHING
        return formats.block(json.dumps(row.return_value, ensure_ascii=False, indent=2))

    @admin.display(description=_("errors"))
    def failures(self, row: TaskResult) -> SafeString:
        blocks = ((formats.error_block(each["traceback"]),) for each in row.errors)
        return format_html_join("", "{}", blocks) or formats.NOTHING


def _duration(row: TaskResult) -> str:
    began: Any = row.last_attempted_at
    ended: Any = row.finished_at
    return "" if began is None or ended is None else _span(ended - began)


def progress_of(row: TaskResult) -> str:
    share = row.metadata.get("progress")
    # A task may store anything under this name.
    if not isinstance(share, int | float):
        return ""
    return f"{formats.percent(share, 0)} {row.metadata.get('message', '')}"


class TaskKindFilter(KindFilter):
    """By queue and priority: always one queue, whose index gives the order."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(each, _queue_label(each)) for each in task_kinds(model_admin.using)]

    def choices(self, changelist: Any) -> Iterator[Any]:
        _, *kinds = super().choices(changelist)
        yield from kinds


class Cancel(MessageOperation):
    name, label, past = "cancel", _("Cancel"), _("Cancelled")
    help = _("Remove a waiting task; ask a running task to stop.")
    permission = "delayed_queue_tasks.cancel_task"

    def settle(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
        rows = Message.objects.using(call.using).filter(pk__in=ids)
        return [each.pk for each in rows if _cancel_message(each)]


@admin.register(TaskUnderWay)
class TaskUnderWayAdmin(MessageAdmin):
    """The messages of one queue of tasks, in the order of delivery, with the names of tasks."""

    operations = (Cancel(), *MESSAGE_OPERATIONS)
    list_per_page = _PAGE
    list_filter = (TaskKindFilter, StateFilter, LeaseFilter, WorkerFilter)
    list_display: Any = ("path", *MessageAdmin.list_display)
    list_display_links: Any = ("path", "key_column")
    readonly_fields: ClassVar[Any] = ("path", "result", *MessageAdmin.readonly_fields)

    @property
    def using(self) -> str:
        return str(self.model._default_manager.db)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.may(request, "delayed_queue_tasks.view_taskresult")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list of a queue, a key or a lease; no index gives any other list."""
        kinds = task_kinds(self.using)
        if kinds and not {KIND, SEARCH_VAR, LEASE, WORKER} & request.GET.keys():
            return HttpResponseRedirect(self.list_url(**{**request.GET.dict(), KIND: kinds[0]}))
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found = super().get_queryset(request).filter(kind__in=task_kinds(self.using))
        # The path is at the end of the payload, behind arguments of any length.
        annotated: QuerySet[Any] = found.annotate(payload_tail=_tail_of("payload"))
        return annotated

    @admin.display(description=_("task"))
    def path(self, row: Any) -> SafeString:
        found = _PATH.search(bytes(row.payload_tail).decode(errors="replace"))
        return formats.dotted(found[1]) if found else formats.quiet(_("in its payload"))

    @admin.display(description=_("so far"))
    def result(self, row: Any) -> SafeString:
        """Link to its recorded attempts, errors and progress."""
        found = TaskResult.objects.filter(pk=row.key).first() if is_id(row.key) else None
        if found is None:
            return formats.quiet(_("nothing is recorded until its first attempt ends"))
        url = self.url("delayed_queue_tasks_taskresult_change", found.pk)
        return formats.link(url, progress_of(found) or "—")


# As the codec writes it, and other writers that put it last.
_PATH: Final = re.compile(r'"task" ?: ?"([^"\\\\]+)" ?}$')
_TAIL: Final = 600


def _tail_of(column: str) -> Func:
    length = Func(F(column), function="octet_length", output_field=IntegerField())
    start = Greatest(Value(1), length - Value(_TAIL - 1))
    return Func(F(column), start, function="substring", output_field=BinaryField())


def task_kinds(using: str) -> list[str]:
    """Return the kinds of all declared queues, of every priority that was used."""
    from delayed_queue.tasks.serving import servings

    used = priorities_by_queue(using=using)
    return [
        kind_of_priority(queue, each)
        for queue in sorted(servings)
        for each in sorted({0, *used.get(queue, ())}, reverse=True)
    ]


def _queue_label(kind: str) -> str:
    name, priority = split_kind(kind)
    facts = {"queue": name, "priority": priority}
    return str(_("%(queue)s, priority %(priority)s") % facts) if priority else name


def _cancel_message(message: Message) -> bool:
    from delayed_queue.tasks.backend import backend_of
    from delayed_queue.tasks.payloads import TaskGone, id_in, unpack

    scheduled_at = to_milliseconds(message.scheduled_at_initially)
    try:
        payload = json.loads(bytes(message.payload))
        backend = backend_of(unpack(payload)[1])
    except (ValueError, TaskGone):
        return False
    return bool(backend.cancel(id_in(payload, message.kind, message.key, scheduled_at)))


def _span(span: timedelta) -> str:
    if span < timedelta(seconds=10):
        return f"{formats.number(round(span / timedelta(milliseconds=1)))} ms"
    return formats.human(span)
