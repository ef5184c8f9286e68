"""The pages of tasks: those under way, results by their day, and what may be done to them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar, Final, cast

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE
from django.contrib.admin.views.main import SEARCH_VAR
from django.core.paginator import Paginator
from django.db import router
from django.db.models import BinaryField, F, Func, IntegerField, QuerySet, Value
from django.db.models.functions import Greatest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import ORIGIN
from delayed_queue.admin.filters import (
    KIND,
    WORKER,
    KindFilter,
    LeaseFilter,
    StateFilter,
    WorkerFilter,
)
from delayed_queue.admin.formats import LEASE
from delayed_queue.admin.lists import ListAdmin
from delayed_queue.admin.messages import MESSAGE_OPERATIONS, Group, MessageAdmin, MessageOperation
from delayed_queue.admin.operations import Call, Entry, english, record
from delayed_queue.db.clock import database_now
from delayed_queue.messages import to_milliseconds
from delayed_queue.models import DeadLetter, Message
from delayed_queue.observe.overview import MAX_KINDS
from delayed_queue.tasks.models import TaskPriority, TaskResult, TaskUnderWay
from delayed_queue.tasks.options import is_id, kind_of_priority, split_kind

_PAGE: Final = 50
# Beyond it nobody pages: a count would read the whole table.
_MOST_LISTED: Final = 1000
_STATES: Final = {
    "": ("leased", _("not finished")), "FAILED": ("alarm", _("failed")),
    "SUCCESSFUL": ("due", _("done")),
}  # fmt: skip


class Uncounted(Paginator):  # type: ignore[type-arg] # not at run time
    """Pages of the newest rows, without a count of them all."""

    @cached_property
    def count(self) -> int:
        rows: Any = self.object_list
        return len(rows.values_list("pk")[:_MOST_LISTED])


class StatusFilter(admin.SimpleListFilter):
    """Failed ones have an index of their own; of the others there is no end."""

    title, parameter_name = _("status"), "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[Any, Any]]:
        return [("FAILED", _("failed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(status="FAILED") if self.value() == "FAILED" else queryset


class TaskFilter(admin.SimpleListFilter):
    """By the path of the task: those that there are, found by a loose index scan."""

    title, parameter_name = _("task"), "task"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = TaskResult.objects.names(MAX_KINDS, using=model_admin.get_queryset(request).db)
        return [(each, each.rpartition(".")[2]) for each in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(task=self.value())


# Of which status a task must be for an action to make sense.
_FITTING: Final = {
    "cancel_tasks": {""}, "retry_now": {"", "FAILED"}, "run_again": {"SUCCESSFUL", "FAILED"},
}  # fmt: skip


@admin.register(TaskResult)
class TaskResultAdmin(ListAdmin):
    """Tasks that have run, or say how far they are; waiting ones are messages of their queue."""

    list_display = ("path", "short_id", "queue", "state", "attempts", "duration", "progress")
    list_filter = (StatusFilter, TaskFilter)
    search_fields = ("task",)
    search_help_text = _("The full path of a task, or the id of a result.")
    ordering = ("-id",)
    sortable_by = ()
    list_per_page = _PAGE
    list_max_show_all = 0
    empty_value_display = "—"
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    paginator = Uncounted
    actions = ("cancel_tasks", "retry_now", "run_again")
    change_form_template = "admin/delayed_queue/row_detail.html"
    fields = (
        "state", "progress", "id", "task", "queue", "times", "duration", "attempts", "workers",
        "arguments", "value", "failures",
    )  # fmt: skip
    readonly_fields = fields

    class Media:
        css = {"all": ["delayed_queue/admin.css"]}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Head the list by what is in it: nothing needs to be selected."""
        return super().changelist_view(request, {"title": _("Tasks"), **(extra_context or {})})

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> HttpResponse:
        row = kwargs["obj"]
        operations = [
            {"name": name, "label": label, "help": label}
            for name, label in self.get_action_choices(request, [])
            if row.status in _FITTING[name]
        ]
        context |= {
            "title": row.task, "subtitle": None, "operations": operations, "token": row.pk,
            "checkbox_name": ACTION_CHECKBOX_NAME,
        }  # fmt: skip
        return super().render_change_form(request, context, *args, **kwargs)

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        # Since Django 6.1 it is asked for those of the detail page too, which has its own buttons.
        if getattr(action_location, "name", "") == "CHANGE_FORM":
            return {}
        return super().get_actions(request)

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

    @admin.display(description=_("task"))
    def path(self, row: TaskResult) -> SafeString:
        return formats.dotted(row.task)

    @admin.display(description=_("id"))
    def short_id(self, row: TaskResult) -> SafeString:
        return format_html('<span title="{}">{}…</span>', row.pk, str(row.pk)[:13])

    @admin.display(description=_("status"))
    def state(self, row: TaskResult) -> SafeString:
        look, words = _STATES[row.status]
        return format_html('<span class="dq-state dq-{}">{}</span>', look, words)

    @admin.display(description=_("queue"))
    def queue(self, row: TaskResult) -> str:
        return _queue_label(row.kind)

    @admin.display(description=_("attempts"))
    def attempts(self, row: TaskResult) -> int:
        return len(row.worker_ids)

    @admin.display(description=_("took"))
    def duration(self, row: TaskResult) -> str:
        began: Any = row.last_attempted_at
        ended: Any = row.finished_at
        return "—" if began is None or ended is None else _span(ended - began)

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

    @admin.display(description=_("workers"))
    def workers(self, row: TaskResult) -> str:
        return ", ".join(each or "—" for each in row.worker_ids) or "—"

    @admin.display(description=_("progress"))
    def progress(self, row: TaskResult) -> str:
        share = row.metadata.get("progress")
        # Whatever a task has put there itself is no progress.
        if not isinstance(share, int | float):
            return "—"
        return f"{formats.percent(share, 0)} {row.metadata.get('message', '')}"

    @admin.display(description=_("arguments"))
    def arguments(self, row: TaskResult) -> SafeString:
        return formats.block(bytes(row.payload).decode(errors="replace"))

    @admin.display(description=_("return value"))
    def value(self, row: TaskResult) -> SafeString:
        if row.status != TaskResult.Status.SUCCESSFUL:
            return formats.NOTHING
        return formats.block(json.dumps(row.return_value, ensure_ascii=False, indent=2))

    @admin.display(description=_("errors"))
    def failures(self, row: TaskResult) -> SafeString:
        blocks = ((formats.error_block(each["traceback"]),) for each in row.errors)
        return format_html_join("", "{}", blocks) or formats.NOTHING

    # What may be done

    @admin.action(description=_("Cancel"), permissions=["cancel"])
    def cancel_tasks(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return self._do(request, queryset, _("cancelled"), _cancel)

    @admin.action(description=_("Retry now: waiting tasks and dead letters"), permissions=["rerun"])
    def retry_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return self._do(request, queryset, _("due now"), _retry)

    @admin.action(description=_("Run again with the same arguments"), permissions=["rerun"])
    def run_again(self, request: HttpRequest, queryset: QuerySet[Any]) -> Any:
        return self._do(request, queryset, _("enqueued again"), _again)

    def _do(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        done: Any,
        call: Callable[[TaskResult], bool],
    ) -> HttpResponse | None:
        rows = list(queryset[:_PAGE])
        count = 0
        for row in rows:
            try:
                count += _carry_out(request, queryset, row, done, call)
            # A task that imports no more, or a backend that is gone; it says so.
            except Exception as error:
                self.message_user(request, f"{row.pk}: {error}", messages.ERROR)
        said = _("%(count)s of %(all)s %(done)s.")
        self.message_user(request, said % {"count": count, "all": len(rows), "done": done})
        # Back to the page it came from; None is back to the list.
        if request.POST.get(ORIGIN) != "detail" or not rows:
            return None
        name = "admin:delayed_queue_tasks_taskresult_change"
        url = reverse(name, args=[rows[0].pk], current_app=self.admin_site.name)
        return HttpResponseRedirect(url)


def _carry_out(
    request: HttpRequest, queryset: QuerySet[Any], row: TaskResult, done: Any,
    change: Callable[[TaskResult], bool],
) -> bool:  # fmt: skip
    """Change one task and record it in the admin's log, in one transaction."""
    call = Call(queryset.using(_backend_of(row).settings.database), [], request.user)
    with call.transaction():
        if not change(row):
            return False
        record(call, CHANGE, [Entry(row, f"{capfirst(english(done))}.")])
        return True


class TaskKindFilter(KindFilter):
    """By queue and priority: always one, whose index gives the order."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(each, _queue_label(each)) for each in task_kinds(model_admin.using)]

    def choices(self, changelist: Any) -> Iterator[Any]:
        _, *kinds = super().choices(changelist)
        yield from kinds


class Cancel(MessageOperation):
    name = "cancel"
    label = _("Cancel")
    help = _("Remove a waiting task; ask a running task to stop.")
    permission = "delayed_queue_tasks.cancel_task"
    past = _("Cancelled")

    def apply(self, group: Group, ids: Sequence[int], call: Call) -> Collection[int]:
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
        return bool(request.user.has_perm("delayed_queue_tasks.view_taskresult"))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the list of one queue, or of a key, or of leases: without, no index gives it."""
        kinds = task_kinds(self.using)
        if kinds and not {KIND, SEARCH_VAR, LEASE, WORKER} & request.GET.keys():
            return HttpResponseRedirect(self._list_url(**{**request.GET.dict(), KIND: kinds[0]}))
        return super().changelist_view(request, extra_context)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found = super().get_queryset(request).filter(kind__in=task_kinds(self.using))
        # The path is the last there is in the payload, however long the arguments are.
        annotated: QuerySet[Any] = found.annotate(payload_tail=_tail_of("payload"))
        return annotated

    @admin.display(description=_("task"))
    def path(self, row: Any) -> SafeString:
        found = _PATH.search(bytes(row.payload_tail).decode(errors="replace"))
        return formats.dotted(found[1]) if found else formats.quiet(_("in its payload"))

    @admin.display(description=_("so far"))
    def result(self, row: Any) -> SafeString:
        """Link to what is recorded of it by now: attempts, errors, progress."""
        found = TaskResult.objects.filter(pk=row.key).first() if is_id(row.key) else None
        if found is None:
            return formats.quiet(_("nothing is recorded until its first attempt ends"))
        name = "admin:delayed_queue_tasks_taskresult_change"
        url = reverse(name, args=[found.pk], current_app=self.admin_site.name)
        page = cast("TaskResultAdmin", self.admin_site.get_model_admin(TaskResult))
        return format_html('<a href="{}">{}</a>', url, page.progress(found))


# As the codec writes it; of other writers where it is the last as well.
_PATH: Final = re.compile(r'"task" ?: ?"([^"\\\\]+)" ?}$')
_TAIL: Final = 600


def _tail_of(column: str) -> Func:
    length = Func(F(column), function="octet_length", output_field=IntegerField())
    start = Greatest(Value(1), length - Value(_TAIL - 1))
    return Func(F(column), start, function="substring", output_field=BinaryField())


def task_kinds(using: str) -> list[str]:
    """Return the kinds of all declared queues, of every priority that was used."""
    from delayed_queue.tasks.serving import servings

    used = TaskPriority.objects.by_queue(using=using)
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
    from delayed_queue.tasks.results import TaskGone, unpack
    from delayed_queue.tasks.serving import declared

    scheduled_at = to_milliseconds(message.scheduled_at_initially)
    try:
        payload = json.loads(bytes(message.payload))
        task_id, _, alias = unpack(payload, message.kind, message.key, scheduled_at)
    except (ValueError, TaskGone):
        return False
    backend = dict(declared()).get(alias)
    return backend is not None and backend.cancel(task_id)


def _span(span: timedelta) -> str:
    if span < timedelta(seconds=10):
        return f"{formats.number(round(span / timedelta(milliseconds=1)))} ms"
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
