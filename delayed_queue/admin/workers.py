"""The workers: who is at work, on what, and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin, messages
from django.contrib.admin import SimpleListFilter
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import escape as escaped
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.admin.base import QueueModelAdmin
from delayed_queue.admin.filters import WORKER
from delayed_queue.admin.lists import DatabaseClock, Keyset, RowState, as_read, find, state_of
from delayed_queue.models import Message, Worker
from delayed_queue.worker.heartbeat import ALIVE, MAX_LEASES

if TYPE_CHECKING:
    from django.contrib.admin import ModelAdmin

_NEWEST_FIRST: Final = Keyset(descending=True)
_MAX_HELD: Final = 50
_ZERO: Final = SafeString('<span class="dq-quiet">0</span>')
_STATE: Final = '<span class="dq-state {}">{}</span> {}'


_NONE_HELD: Final = _("It holds no messages.")
_GONE: Final = _(
    "It holds no messages any more: they were finished, or other workers have taken them."
)
_SILENT_HELD: Final = _(
    "The worker is silent. It still holds the leases of these messages. When a "
    "lease ends, its message is due again and any other worker takes it."
)


class AliveFilter(SimpleListFilter):
    """By the age of the last heartbeat."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> list[tuple[str, Any]]:
        return [("alive", _("Alive")), ("silent", _("Silent"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "alive":
                return queryset.filter(heartbeat_at__gt=DatabaseClock(ALIVE))
            case "silent":
                return queryset.filter(heartbeat_at__lte=DatabaseClock(ALIVE))
        return queryset


@admin.register(Worker)
class WorkerAdmin(QueueModelAdmin):
    """The latest started first; rows are written by the workers themselves."""

    list_filter = (AliveFilter,)
    search_fields = ()  # type: ignore[assignment]
    change_list_template = "admin/delayed_queue/worker_list.html"
    change_form_template = "admin/delayed_queue/worker_detail.html"
    list_display = (
        "key_column", "where_column", "heartbeat_column", "rate_column", "in_flight_column",
        "done_column", "failed_column", "dead_column", "lost_column", "leases_column",
        "started_column", "version_column",
    )  # fmt: skip
    readonly_fields = (
        "heartbeat_column", "host_column", "pid_column", "process_column", "started_column",
        "version_column", "served", "counts", "held",
    )  # fmt: skip

    def keyset_of(self, request: HttpRequest) -> Keyset:
        return _NEWEST_FIRST

    def token_of(self, row: Any) -> str:
        return str(row.id)

    # Reading

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found: QuerySet[Any] = admin.ModelAdmin.get_queryset(self, request)
        annotated: QuerySet[Any] = found.annotate(read_at=DatabaseClock(), key=F("name"))
        return annotated

    def get_object(self, request: HttpRequest, object_id: str, from_field: Any = None) -> Any:
        row = find(self.get_queryset(request), object_id)
        if row is not None:
            row.holding = self._held(request, row)
        return row

    def _held(self, request: HttpRequest, row: Worker) -> list[Any] | None:
        """Return the first messages under its leases; None for those who may not see them."""
        if not request.user.has_perm("delayed_queue.view_message"):
            return None
        found = Message.objects.using(self.get_queryset(request).db)
        # By what its lease ids begin with; "g" comes after all digits of one.
        theirs = (
            found.filter(lease_id__gte=row.holder, lease_id__lt=f"{row.holder}g")
            if row.holder
            else found.filter(lease_id__in=row.lease_ids)
        )
        held = as_read(theirs).order_by("lease_id", "id")
        return list(held[: _MAX_HELD + 1])

    def _get_obj_does_not_exist_redirect(
        self, request: HttpRequest, opts: Any, object_id: str
    ) -> HttpResponse:
        text = _("This worker has stopped and removed its row.")
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._list_url())

    # Columns

    @admin.display(description=_("worker"))
    def key_column(self, row: Worker) -> SafeString:
        return formats.key_label(row.name)

    @admin.display(description=_("where it runs"))
    def where_column(self, row: Worker) -> SafeString:
        names = ", ".join(row.queues)
        return format_html(
            '{} · pid {} · {}<div class="dq-quiet" title="{}">{}</div>',
            row.host, row.pid, _("process %(number)s") % {"number": row.process}, names,
            Truncator(names).chars(80),
        )  # fmt: skip

    @admin.display(description=_("heartbeat"))
    def heartbeat_column(self, row: Any) -> SafeString:
        age = row.read_at - row.heartbeat_at
        words = formats.moment(row.heartbeat_at, _("%(span)s ago") % {"span": formats.human(age)})
        if age < ALIVE:
            return format_html(_STATE, "dq-due", _("alive"), words)
        since = formats.moment(row.heartbeat_at, _("for %(span)s") % {"span": formats.human(age)})
        return format_html(_STATE, "dq-alarm", _("silent"), since)

    @admin.display(description=_("rate"))
    def rate_column(self, row: Any) -> str:
        return _of_now(row, formats.per_second(sum(row.rates.values())))

    @admin.display(description=_("in flight"))
    def in_flight_column(self, row: Any) -> str:
        return _of_now(row, formats.number(row.in_flight))

    @admin.display(description=_("done"))
    def done_column(self, row: Worker) -> str:
        return formats.number(row.done)

    @admin.display(description=_("retried"))
    def failed_column(self, row: Worker) -> SafeString:
        return _count(row.failed)

    @admin.display(description=_("dead"))
    def dead_column(self, row: Worker) -> SafeString:
        return _count(row.dead, is_bad=True)

    @admin.display(description=_("lost"))
    def lost_column(self, row: Worker) -> SafeString:
        return _count(row.lost, is_bad=True)

    @admin.display(description=_("leases"))
    def leases_column(self, row: Worker) -> SafeString:
        if not row.lease_ids:
            return formats.NOTHING
        number = len(row.lease_ids)
        return format_html(
            '<a href="{}">{}</a>', self._messages_url(row), f"{number}{_more(number)}"
        )

    @admin.display(description=_("started"))
    def started_column(self, row: Any) -> SafeString:
        return formats.moment(row.started_at, formats.relative(row.started_at, row.read_at))

    @admin.display(description=_("version"))
    def version_column(self, row: Worker) -> str:
        return row.version

    @admin.display(description=_("host"))
    def host_column(self, row: Worker) -> str:
        return row.host

    @admin.display(description=_("process id"))
    def pid_column(self, row: Worker) -> int:
        return row.pid

    @admin.display(description=_("process"))
    def process_column(self, row: Worker) -> int:
        return row.process

    # The detail page

    @admin.display(description=_("queues, by priority"))
    def served(self, row: Any) -> SafeString:
        def rate(name: str) -> str:
            return _of_now(row, formats.per_second(row.rates.get(name, 0)))

        lines = [(name, rate(name)) for name in row.queues]
        return formats.table((_("queue"), _("rate")), lines)

    @admin.display(description=_("since it started"))
    def counts(self, row: Worker) -> SafeString:
        heads = (_("in flight"), _("done"), _("retried"), _("dead"), _("lost"))
        counts = (row.done, row.failed, row.dead, row.lost)
        line = (self.in_flight_column(row), *map(formats.number, counts))
        return formats.table(heads, [line])

    @admin.display(description=_("leases"))
    def held(self, row: Any) -> SafeString:
        if row.holding is None:
            return formats.quiet(_("Hidden: needs the permission delayed_queue.view_message."))
        if not row.holding:
            return formats.quiet(_GONE if is_silent(row) else _NONE_HELD)
        heads = (_("key"), _("queue"), _("time"), _("lease"))
        lines = formats.table(heads, self._held_lines(row))
        note = formats.quiet(_("At most %(most)s messages are shown.") % {"most": _MAX_HELD})
        link = format_html(
            '<a href="{}">{}</a>',
            self._messages_url(row),
            _("Release, extend, reject or drop them"),
        )
        became = formats.quiet(_SILENT_HELD) if is_silent(row) else ""
        return format_html("{}{}{}{}", became, lines, note, link)

    def _held_lines(self, row: Any) -> Iterator[tuple[Any, ...]]:
        for each in row.holding[:_MAX_HELD]:
            url = reverse(
                "admin:delayed_queue_message_change", args=[each.pk],
                current_app=self.admin_site.name,
            )  # fmt: skip
            yield (
                format_html('<a href="{}">{}</a>', url, formats.key_label(each.key)),
                formats.kind_label(each.kind),
                formats.waiting(each),
                format_html('<code title="{}">{}</code>', each.lease_id, each.lease_id[:8]),
            )

    def _messages_url(self, row: Worker) -> str:
        name = "admin:delayed_queue_message_changelist"
        query = urlencode({WORKER: row.pk})
        return f"{reverse(name, current_app=self.admin_site.name)}?{query}"


def is_silent(row: Any) -> bool:
    silence: timedelta = row.read_at - row.heartbeat_at
    return silence >= ALIVE


def _of_now(row: Any, told: str) -> str:
    """Return what a worker told; of a silent one that is no rate of now, and held no more."""
    return formats.NOTHING if is_silent(row) else told


def _more(number: int) -> str:
    return "+" if number >= MAX_LEASES else ""


def _count(number: int, *, is_bad: bool = False) -> SafeString:
    if number == 0:
        return _ZERO
    return format_html(
        '<span class="{}">{}</span>', "dq-alarm" if is_bad else "", formats.number(number)
    )


# Who holds a message

HOLDER_LENGTH: Final = 8


def names_of_holders(rows: Iterable[Any], using: str) -> dict[str, str]:
    """Return the names of the workers that hold the rows' leases, by the start of the lease id."""
    # One that no worker has is always asked for: a page runs as many statements empty as full.
    holders = {(row.lease_id or "none")[:HOLDER_LENGTH] for row in rows} | {"none"}
    found = Worker.objects.using(using).filter(holder__in=holders).order_by("id")
    return dict(found.values_list("holder", "name"))


def holder_of(row: Any, using: str, site: str) -> SafeString:
    """Return which worker holds a message, by the beginning of its lease id."""
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
           "since": formats.exact(worker.started_at)},
        _alive_or_what(silence, row),
    )  # fmt: skip


def _alive_or_what(silence: timedelta, row: Any) -> SafeString:
    """Return that the holder lives, or what becomes of the message when it does not."""
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
