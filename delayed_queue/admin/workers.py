"""The workers: where they run, what they hold, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar, Final

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils.html import escape as escaped
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.filters import ChoiceFilter
from delayed_queue.admin.formats import column, count_column, time_column
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.admin.rows import DatabaseClock, RowState, state_of
from delayed_queue.admin.searching import HOLDER_LENGTH, leases_from
from delayed_queue.models import Message, Worker
from delayed_queue.observe.workers import ALIVE, DRAIN, RESTART

_NONE_HELD: Final = _("It holds no messages.")
_GONE: Final = _(
    "It holds no messages any more: they were finished, or other workers have taken them."
)
_SILENT_HELD: Final = _(
    "The worker is silent. It still holds the leases of these messages. When a "
    "lease ends, its message is due again and any other worker takes it."
)


# By the command that the worker follows: the look and the words.
_STATES: Final = {
    "": ("due", _("alive")), DRAIN: ("scheduled", _("drained")),
    RESTART: ("scheduled", _("restarts")),
}  # fmt: skip


class WorkerOperation(Operation):
    """Gives workers a command, which they follow at once, or at their next heartbeat."""

    permission = "delayed_queue.operate_worker"
    noun = ngettext_lazy("%(count)s worker", "%(count)s workers", "count")
    command = ""
    already: Any = ""

    def fits(self, row: Any) -> bool:
        return bool(row.command != self.command)

    def change(self, row: Any, call: Call, report: Report) -> Any:
        if not self.fits(row):
            return self.already
        row.command = self.command
        row.save(using=call.using, update_fields=["command"])
        return True

    def follow(self, row: Any, call: Call, report: Report) -> None:
        Worker.objects.announce_commands(using=call.using)


class Drain(WorkerOperation):
    name, label, past = "drain", _("Drain"), _("Drained")
    help = _("Claim no messages until the worker is resumed; those in progress are finished.")
    command, already = DRAIN, _("drained already")


class Resume(WorkerOperation):
    name, label, past = "resume", _("Resume"), _("Resumed")
    help = _("Claim messages again.")
    already = _("not drained")


class Restart(WorkerOperation):
    name, label, past = "restart", _("Restart"), _("Restarted")
    help = _("Finish the messages in progress and exit; the supervisor starts another process.")
    warning = _(
        "Messages that are still in progress after SHUTDOWN_TIMEOUT are released without losing "
        "an attempt. Without a supervisor the process manager must start the worker again."
    )
    command, already = RESTART, _("restarts already")


class AliveFilter(ChoiceFilter):
    """By the age of the last heartbeat."""

    title, parameter_name = _("state"), "state"

    offered: ClassVar = {
        "alive": (_("Alive"), Q(heartbeat_at__gt=DatabaseClock(ALIVE))),
        "silent": (_("Silent"), Q(heartbeat_at__lte=DatabaseClock(ALIVE))),
        "slow": (_("With slow handlers"), Q(heartbeat_at__gt=DatabaseClock(ALIVE), slow__gt=0)),
    }


@admin.register(Worker)
class WorkerAdmin(RecordAdmin):
    """The latest started first; workers write the rows themselves."""

    operations = (Drain(), Resume(), Restart())
    list_filter = (AliveFilter,)
    change_list_template = "admin/delayed_queue/worker_list.html"
    change_form_template = "admin/delayed_queue/live_detail.html"
    list_display = (
        "key_column", "where_column", "heartbeat_column", "rate_column", "running_column",
        "threads_column", "in_flight_column", "done_column", "failed_column", "dead_column",
        "lost_column",
    )  # fmt: skip
    readonly_fields = (
        "heartbeat_column", "host_column", "pid_column", "process_column", "started_column",
        "version_column", "threads_column", "memory_column", "running_column", "served",
        "in_flight_column", "done_column", "failed_column", "dead_column", "lost_column", "held",
    )  # fmt: skip

    key_column = column(_("worker"), lambda row: formats.key_label(row.name))
    rate_column = column(
        _("rate"), lambda row: _of_now(row, formats.per_second(sum(row.rates.values())))
    )
    threads_column = column(
        _("busy threads"), lambda row: _of_now(row, f"{row.busy_threads} / {row.threads}")
    )
    memory_column = column(
        _("memory"), lambda row: _of_now(row, filesizeformat(row.memory) if row.memory else "")
    )
    in_flight_column = column(
        _("in flight"), lambda row: _of_now(row, formats.number(row.in_flight))
    )
    done_column = count_column(_("done"), "done")
    failed_column = count_column(_("retried"), "failed")
    dead_column = column(_("dead"), lambda row: formats.alarm(row.dead, formats.number(row.dead)))
    lost_column = column(_("lost"), lambda row: formats.alarm(row.lost, formats.number(row.lost)))
    started_column = time_column(_("started"), "started_at")
    version_column = column(_("version"), "version")
    host_column = column(_("host"), "host")
    pid_column = column(_("process id"), "pid")
    process_column = column(_("process"), "process")
    served = column(_("queues, by priority"), lambda row: ", ".join(row.queues))

    def gone_text(self) -> Any:
        return _("This worker has stopped and removed its row.")

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            messages = Message.objects.using(self.get_queryset(request).db)
            may_view = self.may(request, "delayed_queue.view_message")
            row.is_holding = messages.filter(leases_from(row.holder)).exists() if may_view else None
        return row

    @admin.display(description=_("where it runs"))
    def where_column(self, row: Worker) -> SafeString:
        names = ", ".join(row.queues)
        return format_html(
            '{} · pid {} · {} · {}<div class="dq-quiet" title="{}">{}</div>',
            row.host, row.pid, _("process %(number)s") % {"number": row.process}, row.version,
            names, Truncator(names).chars(80),
        )  # fmt: skip

    @admin.display(description=_("heartbeat"))
    def heartbeat_column(self, row: Any) -> SafeString:
        age = row.read_at - row.heartbeat_at
        words = formats.moment(row.heartbeat_at, _("%(span)s ago") % {"span": formats.human(age)})
        if age < ALIVE:
            label = formats.state(*_STATES[row.command])
            return format_html("{} {}", label, words)
        since = formats.moment(row.heartbeat_at, _("for %(span)s") % {"span": formats.human(age)})
        return format_html("{} {}", formats.state("alarm", _("silent")), since)

    @admin.display(description=_("longest-running"))
    def running_column(self, row: Any) -> SafeString:
        found = row.running_at(row.read_at)
        if found is None or is_silent(row):
            return formats.NOTHING
        url = self.url("delayed_queue_message_changelist", q=found.key)
        return format_html(
            '<span class="{}">{}</span><div class="dq-quiet">{} <a href="{}">{}</a> {}</div>',
            "dq-alarm" if found.is_slow else "", formats.human(found.age), found.queue, url,
            formats.key_label(found.key), found.thread,
        )  # fmt: skip

    # The detail page

    @admin.display(description=_("leases"))
    def held(self, row: Any) -> SafeString:
        if row.is_holding is None:
            return formats.quiet(_("Hidden: needs the permission delayed_queue.view_message."))
        if not row.is_holding:
            return formats.quiet(_GONE if is_silent(row) else _NONE_HELD)
        url = self.url("delayed_queue_message_changelist", q=f"lease:{row.holder}")
        link = formats.link(url, _("Show the messages that it holds"))
        return format_html("{}{}", formats.quiet(_SILENT_HELD) if is_silent(row) else "", link)


def is_silent(row: Any) -> bool:
    silence: timedelta = row.read_at - row.heartbeat_at
    return silence >= ALIVE


def _of_now(row: Any, reported: str) -> str:
    """Return what a live worker reported; a dash for a silent worker."""
    return formats.NOTHING if is_silent(row) else reported


def names_of_holders(rows: Iterable[Any], using: str) -> dict[str, str]:
    """Return the names of the workers that hold the rows' leases, by the start of the lease id."""
    # "none" keeps the list from being empty: every page runs the same statements.
    holders = {(row.lease_id or "none")[:HOLDER_LENGTH] for row in rows} | {"none"}
    found = Worker.objects.using(using).filter(holder__in=holders).order_by("id")
    return dict(found.values_list("holder", "name"))


def holder_of(row: Any, using: str, site: str) -> SafeString:
    """Return which worker holds a message, by the start of its lease id."""
    found = Worker.objects.using(using).annotate(read_at=DatabaseClock())
    worker = found.filter(holder=(row.lease_id or "")[:HOLDER_LENGTH]).order_by("-id").first()
    if worker is None:
        return formats.quiet(
            _(
                "No listed worker holds it. A consumer in your own code may hold "
                "it, or a worker that has stopped or been silent for a day."
            )
        )
    url = reverse("admin:delayed_queue_worker_change", args=[worker.pk], current_app=site)
    silence = worker.read_at - worker.heartbeat_at
    return format_html(
        '<p class="dq-note">{} <a href="{}">{}</a> {}; {}</p>',
        _("Held by"), url, worker.name,
        _("on %(host)s, pid %(pid)s, process %(process)s, running since %(since)s")
        % {"host": worker.host, "pid": worker.pid, "process": worker.process,
           "since": formats.dated(worker.started_at, "Y-m-d H:i:s T")},
        _alive_or_what(silence, row),
    )  # fmt: skip


def _alive_or_what(silence: timedelta, row: Any) -> SafeString:
    """Return that the holder is alive, or what becomes of the message of a silent one."""
    if silence < ALIVE:
        return escaped(_("alive, heartbeat %(span)s ago.") % {"span": formats.human(silence)})
    when = formats.human(row.scheduled_at - row.read_at)
    after = (
        _("its lease ends in %(when)s; then the message is due again")
        if state_of(row) is RowState.LEASED
        else _("its lease ended %(when)s ago; the message is due again")
    )
    return format_html(
        '<strong class="dq-alarm">{}</strong> {}: {}.',
        _("silent"), _("for %(span)s") % {"span": formats.human(silence)}, after % {"when": when},
    )  # fmt: skip
