"""The page of tasks: waiting, running and finished ones, with charts of a task."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple

from django.contrib import admin
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.filters import ChoiceFilter
from delayed_queue.admin.formats import column, time_column
from delayed_queue.admin.history import Figure, figure_of
from delayed_queue.admin.lists import AFTER
from delayed_queue.admin.operating import OperatingAdmin
from delayed_queue.admin.rows import RowState, state_of
from delayed_queue.models import Message
from delayed_queue.observe.history import window_of
from delayed_queue.observe.overview import MAX_KINDS
from delayed_queue.tasks.ids import id_at
from delayed_queue.tasks.models import TaskResult
from delayed_queue.tasks.operations import CancelTask, RetryTask, RunAgain
from delayed_queue.tasks.priorities import split_kind
from delayed_queue.tasks.store import task_names
from delayed_queue.tasks.store_search import SCANNED, search_results, task_steps
from delayed_queue.tasks.under_way import find_task, id_of, tasks_under_way

VIEW_PAYLOAD: Final = "delayed_queue.view_payload"
STATUS: Final = "status"
TASK: Final = "task"
_STATES: Final = {
    "": ("leased", _("not finished")), "FAILED": ("alarm", _("failed")),
    "SUCCESSFUL": ("due", _("done")),
}  # fmt: skip
_UNDER_WAY: Final = {
    RowState.LEASED: ("leased", _("running")), RowState.SCHEDULED: ("scheduled", _("scheduled")),
    RowState.DUE: ("expired", _("waiting")), RowState.EXPIRED: ("expired", _("waiting")),
}  # fmt: skip
# At most N waiting and running tasks in front of the recorded ones, and in lists of their own.
_HEAD: Final = 20
# At most N paths that contain a searched term.
_MAX_NAMES: Final = 10
_PAGE: Final = 50
_SPAN: Final = timedelta(hours=24)
_STEP: Final = timedelta(minutes=15)


class StatusFilter(ChoiceFilter):
    """States that an index gives: of messages, and of failed results."""

    title, parameter_name = _("status"), STATUS

    # Running and waiting tasks are messages: ``complete`` adds them.
    offered: ClassVar = {
        "running": (_("running"), Q(pk__in=[])), "waiting": (_("waiting"), Q(pk__in=[])),
        "FAILED": (_("failed"), Q(status="FAILED")),
    }  # fmt: skip


class TaskFilter(admin.SimpleListFilter):
    """By the path of the task: the stored paths, read by a loose index scan."""

    title, parameter_name = _("task"), TASK

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = task_names(MAX_KINDS, using=model_admin.get_queryset(request).db)
        return [(each, each.rpartition(".")[2]) for each in names]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset if self.value() is None else queryset.filter(task=self.value())


class Search(NamedTuple):
    """The meanings of a term: the start of an id, a part of a path, a part of the arguments."""

    first: str | None
    last: str | None
    tasks: list[str]
    text: bytes | None

    @classmethod
    def of(cls, term: str, using: str, *, has_arguments: bool) -> Search:
        is_prefix = _is_start_of_id(term)
        names = task_names(MAX_KINDS, using=using)
        return cls(
            term + _FIRST[len(term) :] if is_prefix else None,
            term + _LAST[len(term) :] if is_prefix else None,
            [each for each in names if term in each][:_MAX_NAMES] or [term],
            json.dumps(term, ensure_ascii=False)[1:-1].encode() if has_arguments else None,
        )

    @property
    def texts(self) -> list[bytes]:
        """The text that payloads of matching messages contain."""
        return [*_texts_of(*self.tasks), *([self.text] if self.text else [])]

    def matches(self, row: Any) -> bool:
        """True unless the row was found by arguments that the reader may not see."""
        is_named = self.first is not None and id_of(row).startswith(self.first.rstrip("0-"))
        return bool(self.text or is_named or row.task in self.tasks)


_FIRST: Final = "00000000-0000-0000-0000-000000000000"
_LAST: Final = "ffffffff-ffff-ffff-ffff-ffffffffffff"


def _is_start_of_id(term: str) -> bool:
    """Return whether the term is the start of an id, of 8 characters or more."""
    places = zip(term, _FIRST, strict=False)
    is_like_one = all((each == "-") == (first == "-") for each, first in places)
    return is_like_one and 8 <= len(term) <= len(_FIRST) and set(term) <= set("0123456789abcdef-")


def _texts_of(*tasks: str) -> list[bytes]:
    """Return the paths as the codec writes them, and other writers."""
    names = [json.dumps(each, ensure_ascii=False) for each in tasks]
    return [f'"task":{blank}{each}'.encode() for each in names for blank in ("", " ")]


@admin.register(TaskResult)
class TaskResultAdmin(OperatingAdmin):
    """Running and waiting tasks first, then recorded ones, the newest first."""

    operations = (CancelTask(), RetryTask(), RunAgain())
    list_heading = _("Tasks")
    list_display = (
        "path", "short_id", "state", "queue", "enqueued", "started", "finished", "duration",
        "attempts", "worker",
    )  # fmt: skip
    list_filter = (StatusFilter, TaskFilter)
    search_fields = ("task",)
    search_help_text = _("The beginning of an id, a path, or a value of the arguments.")
    list_per_page = _PAGE
    change_list_template = "admin/delayed_queue_tasks/task_list.html"
    change_form_template = "admin/delayed_queue/row_detail.html"
    readonly_fields = (
        "state", "id", "task", "queue", "times", "duration", "attempts", "workers", "message",
        "arguments", "value", "failures",
    )  # fmt: skip
    guarded: ClassVar = dict.fromkeys(("arguments", "value", "failures"), VIEW_PAYLOAD)

    path = column(_("task"), lambda row: formats.dotted(row.task))
    short_id = column(
        _("id"), lambda row: format_html('<span title="{}">{}…</span>', id_of(row), id_of(row)[:13])
    )
    state = column(_("status"), lambda row: _state(row))
    queue = column(_("queue"), lambda row: _queue_label(row.kind))
    enqueued = time_column(_("enqueued"), "enqueued_at")
    started = time_column(_("started"), "last_attempted_at")
    finished = time_column(_("finished"), "finished_at")
    attempts = column(_("attempts"), lambda row: len(row.worker_ids))
    duration = column(_("took"), lambda row: _duration(row))
    worker = column(_("worker"), lambda row: row.worker_ids[-1] if row.worker_ids else "")
    workers = column(_("workers"), lambda row: ", ".join(each or "—" for each in row.worker_ids))
    arguments = column(_("arguments"), lambda row: formats.block(_payload(row)))

    def title_of(self, row: Any) -> str:
        return str(row.task)

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        # The list shows none of these, and they may be large.
        return super().get_queryset(request).defer("payload", "return_value", "errors")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if search := self._search(request, queryset.db):
            wanted = search._asdict()
            return queryset.filter(pk__in=search_results(using=queryset.db, **wanted)), False
        return queryset, False

    def _search(self, request: HttpRequest, using: str) -> Search | None:
        term = request.GET.get(SEARCH_VAR, "").strip()
        may_read = self.may(request, VIEW_PAYLOAD)
        return Search.of(term, using, has_arguments=may_read) if term else None

    def complete(self, request: HttpRequest, rows: Any, using: str) -> None:
        """Put waiting and running tasks in front of the first page."""
        status, task = request.GET.get(STATUS), request.GET.get(TASK)
        if AFTER in request.GET or status == "FAILED":
            return
        search = self._search(request, using)
        found = tasks_under_way(
            using, states=status or "", limit=_PAGE if status or search else _HEAD,
            texts=search.texts if search else _texts_of(task) if task else None,
            first=search and search.first, last=search and search.last,
        )  # fmt: skip
        found = [
            each
            for each in found
            if (search is None or search.matches(each)) and task in (None, each.task)
        ]
        shown = {id_of(each) for each in found}
        rows[:] = [*found, *(each for each in rows if id_of(each) not in shown)]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        task, using = request.GET.get(TASK), self.get_queryset(request).db
        figures = charts_of(task, using) if task and "\x00" not in task else []
        return super().changelist_view(request, {"figures": figures, **(extra_context or {})})

    # The page of a task

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        return find_task(object_id, self.get_queryset(request).defer(None))

    def gone_text(self) -> Any:
        return _("This task is no longer under way, and has no result.")

    @admin.display(description=_("message"))
    def message(self, row: Any) -> SafeString:
        if getattr(row, "message", None) is None:
            return formats.NOTHING
        key = formats.key_label(row.message.key)
        if self.admin_site.is_registered(Message):
            key = formats.link(self.url("delayed_queue_message_change", row.message.pk), key)
        return format_html("{} {}", key, formats.waiting(row.message))

    @admin.display(description=_("timeline"))
    def times(self, row: Any) -> SafeString:
        is_later, is_retried = row.scheduled_at != row.enqueued_at, len(row.worker_ids) > 1
        events: list[tuple[Any, Any]] = [
            (row.enqueued_at, _("enqueued")),
            (row.scheduled_at if is_later else None, _("scheduled")),
            (row.started_at, _("first attempt started")),
            (row.last_attempted_at if is_retried else None, _("last attempt started")),
            (row.finished_at, _("finished")),
            (row.cancelled_at, _("cancelled")),
        ]
        return formats.timeline(events, row.read_at)

    @admin.display(description=_("return value"))
    def value(self, row: Any) -> SafeString:
        if row.status != TaskResult.Status.SUCCESSFUL:
            return formats.NOTHING
        return formats.block(json.dumps(row.return_value, ensure_ascii=False, indent=2))

    @admin.display(description=_("errors"))
    def failures(self, row: Any) -> SafeString:
        blocks = ((formats.error_block(each["traceback"]),) for each in row.errors)
        return format_html_join("", "{}", blocks) or formats.NOTHING


def _state(row: Any) -> SafeString:
    message = getattr(row, "message", None)
    look = _STATES[row.status] if message is None else _UNDER_WAY[state_of(message)]
    return format_html("{} {}", formats.state(*look), "" if row.status else progress_of(row))


def progress_of(row: Any) -> str:
    share = row.metadata.get("progress")
    # A task may store anything under this name.
    if not isinstance(share, int | float):
        return ""
    return f"{formats.percent(share, 0)} {row.metadata.get('message', '')}"


def _payload(row: Any) -> str:
    # A row that is not stored has no payload of its own.
    return bytes(row.payload or row.message.payload).decode(errors="replace")


def _duration(row: Any) -> str:
    began, ended = row.last_attempted_at, row.finished_at
    return "" if began is None or ended is None else formats.seconds((ended - began) / _SECOND)


_SECOND: Final = timedelta(seconds=1)


def _queue_label(kind: str) -> str:
    name, priority = split_kind(kind)
    facts = {"queue": name, "priority": priority}
    return str(_("%(queue)s, priority %(priority)s") % facts) if priority else name


# Charts of a task, made of its results


class TaskStep(NamedTuple):
    """The tasks that finished in a step of time; percentiles of their last run in seconds."""

    minute: int
    done: float | None = None
    failed: float | None = None
    p50: float | None = None
    p99: float | None = None

    @property
    def is_sampled(self) -> bool:
        return self.done is not None


_FIGURES: Final = (
    Figure(_("Finished, a minute"), (
        (_("done"), "dq-of-due", lambda step: step.done),
        (_("failed"), "dq-of-alarm", lambda step: step.failed),
    )),
    Figure(_("Run time"), (
        (_("p99"), "dq-of-expired", lambda step: step.p99),
        (_("p50"), "dq-of-leased", lambda step: step.p50),
    ), formats.seconds),
)  # fmt: skip


def charts_of(task: str, using: str) -> list[dict[str, Any]]:
    """Return charts of the past day, of at most 20,000 results; older steps are unknown."""
    window = window_of(_SPAN, _STEP, using=using)
    rows = task_steps(task, id_at(window.since * 60_000), window.step * 60_000, using=using)
    found = {row[0] * window.step: row[1:] for row in rows}
    is_cut = sum(row[1] for row in rows) >= 2 * SCANNED
    earliest = min(found, default=0) if is_cut else 0
    steps = [
        _step(minute, found.get(minute), window.step) if minute >= earliest else TaskStep(minute)
        for minute in range(window.since, window.until, window.step)
    ]
    return [figure_of(each, window, steps, SafeString("")) for each in _FIGURES]


def _step(minute: int, found: Any, width: int) -> TaskStep:
    if found is None:
        return TaskStep(minute, 0, 0)
    finished, failed, times = found[:3]
    p50, p99 = (None if each is None else float(each) / 1000 for each in times or (None, None))
    return TaskStep(minute, (finished - failed) / width, failed / width, p50, p99)
