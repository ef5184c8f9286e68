"""The page of tasks: results by the day they were to run, and what an operator may do with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from delayed_queue.admin import formats
from delayed_queue.models import DeadLetter, Message
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.options import is_id, split_kind

if TYPE_CHECKING:
    _Base = admin.ModelAdmin[Any]
else:
    _Base = admin.ModelAdmin  # cannot be subscripted at run time on Django 5.2

_PAGE: Final = 50
# Beyond it nobody pages: a count would read the whole table.
_MOST_LISTED: Final = 1000
_STATES: Final = {
    "": ("leased", "not finished"), "FAILED": ("alarm", "failed"), "SUCCESSFUL": ("due", "done"),
}  # fmt: skip


class Uncounted(Paginator):  # type: ignore[type-arg] # not at run time
    """Pages of the newest rows, without a count of them all."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows.values_list("pk")[:_MOST_LISTED])


class StatusFilter(admin.SimpleListFilter):
    """Failed ones have an index of their own; of the others there is no end."""

    title, parameter_name = "status", "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("FAILED", "failed")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(status="FAILED") if self.value() == "FAILED" else queryset


@admin.register(TaskResult)
class TaskResultAdmin(_Base):
    """Tasks that have run, or say how far they are; waiting ones are messages of their queue."""

    list_display = ("path", "short_id", "queue", "state", "attempts", "duration", "progress")
    list_filter = (StatusFilter,)
    search_fields = ("task",)
    search_help_text = "The whole path of a task, or the id of a result."
    ordering = ("-id",)
    sortable_by = ()
    list_per_page = _PAGE
    list_max_show_all = 0
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = Uncounted
    actions = ("cancel_tasks", "retry_now", "run_again")
    fields = (
        "id", "task", "queue", "state", "attempts", "enqueued_at", "scheduled_at", "started_at",
        "finished_at", "duration", "worker_ids", "progress", "arguments", "value", "failures",
    )  # fmt: skip
    readonly_fields = fields

    class Media:
        css = {"all": ["delayed_queue/admin.css"]}

    # What may be seen

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("delayed_queue_tasks.cancel_task"))

    def has_rerun_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("delayed_queue_tasks.rerun_task"))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Arguments, values and errors are a payload's: behind the permission to see those."""
        if request.user.has_perm("delayed_queue.view_payload"):
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
        # A list shows none of these, and they may be large.
        found: QuerySet[Any] = super().get_queryset(request)
        return found.defer("payload", "return_value", "errors")

    @admin.display(description="task")
    def path(self, row: TaskResult) -> SafeString:
        return formats.dotted(row.task)

    @admin.display(description="id")
    def short_id(self, row: TaskResult) -> SafeString:
        return format_html('<span title="{}">{}…</span>', row.pk, str(row.pk)[:13])

    @admin.display(description="status")
    def state(self, row: TaskResult) -> SafeString:
        look, words = _STATES[row.status]
        return format_html('<span class="dq-state dq-{}">{}</span>', look, words)

    @admin.display(description="queue")
    def queue(self, row: TaskResult) -> str:
        name, priority = split_kind(row.kind)
        return f"{name}, priority {priority}" if priority else name

    @admin.display(description="attempts")
    def attempts(self, row: TaskResult) -> int:
        return len(row.worker_ids)

    @admin.display(description="took")
    def duration(self, row: TaskResult) -> str:
        began: Any = row.last_attempted_at
        ended: Any = row.finished_at
        return "—" if began is None or ended is None else _span(ended - began)

    @admin.display(description="progress")
    def progress(self, row: TaskResult) -> str:
        share = row.metadata.get("progress")
        # Whatever a task has put there itself is no progress.
        if not isinstance(share, int | float):
            return "—"
        return f"{share:.0%} {row.metadata.get('message', '')}"

    @admin.display(description="arguments")
    def arguments(self, row: TaskResult) -> SafeString:
        return formats.block(bytes(row.payload).decode(errors="replace"))

    @admin.display(description="return value")
    def value(self, row: TaskResult) -> SafeString:
        return formats.block(json.dumps(row.return_value, ensure_ascii=False, indent=2))

    @admin.display(description="errors")
    def failures(self, row: TaskResult) -> SafeString:
        blocks = ((formats.error_block(each["traceback"]),) for each in row.errors)
        return format_html_join("", "{}", blocks) or formats.NOTHING

    # What may be done

    @admin.action(description="Cancel", permissions=["cancel"])
    def cancel_tasks(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._do(request, queryset, "cancelled", _cancel)

    @admin.action(description="Retry now: what waits, and dead letters", permissions=["rerun"])
    def retry_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._do(request, queryset, "to be run now", _retry)

    @admin.action(description="Run again with the same arguments", permissions=["rerun"])
    def run_again(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        self._do(request, queryset, "enqueued again", _again)

    def _do(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        done: str,
        call: Callable[[TaskResult], bool],
    ) -> None:
        rows = list(queryset[:_PAGE])
        count = 0
        for row in rows:
            try:
                count += call(row)
            # A task that imports no more, or a backend that is gone; it says so.
            except Exception as error:
                self.message_user(request, f"{row.pk}: {error}", messages.ERROR)
        self.message_user(request, f"{count} of {len(rows)} {done}.")


def _span(span: timedelta) -> str:
    if span < timedelta(seconds=10):
        return f"{span / timedelta(milliseconds=1):,.0f} ms"
    return formats.human(span)


def _backend_of(row: TaskResult) -> Any:
    # Not before it is asked for: without a backend in TASKS there may be no tasks to import.
    from delayed_queue.tasks.serving import declared

    found = dict(declared()).get(row.backend)
    if found is None:
        raise LookupError(f"TASKS has no backend {row.backend!r}.")
    return found


def _cancel(row: TaskResult) -> bool:
    cancelled: bool = _backend_of(row).cancel(str(row.pk))
    return cancelled


def _retry(row: TaskResult) -> bool:
    using = _backend_of(row).settings.database
    key = row.key or str(row.pk)
    message = Message.objects.using(using).filter(key=key, kind=row.kind).first()
    if message is not None:
        return TaskResult.objects.hasten(message.pk, using=using)
    letters = DeadLetter.objects.using(using).filter(key=key, kind=row.kind).order_by("-pk")
    ids = list(letters.values_list("pk", flat=True)[:1])
    return bool(ids) and any(
        each.created is not None for each in DeadLetter.objects.redrive(ids, using=using)
    )


def _again(row: TaskResult) -> bool:
    """Enqueue the task as it is now, with the arguments that it was enqueued with."""
    from delayed_queue.tasks.results import task_at

    said = json.loads(bytes(row.payload))
    name, priority = split_kind(row.kind)
    task = task_at(row.task).using(backend=row.backend, queue_name=name, priority=priority)
    task.enqueue(*said.get("args", ()), **said.get("kwargs", {}))
    return True
