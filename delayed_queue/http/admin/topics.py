"""The topics: their shards, their counts, and pausing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.fields import PauseForm, count_field, reasons
from delayed_queue.admin.formats import column
from delayed_queue.admin.operations import GONE, Call, Operation, Report, parse_ids, unnamed
from delayed_queue.admin.queues import PAUSE_QUEUE
from delayed_queue.http.admin.forms import StoredByForm, StoringForm
from delayed_queue.http.jobs.catalogue import configure_topic, pause_topic, resume_topic
from delayed_queue.http.jobs.kinds import check_topic, kinds_of_topic, topic_kind
from delayed_queue.http.models import Topic
from delayed_queue.models import Limit
from delayed_queue.observe.overview import depths, total

# Counts stop here: a page has up to a hundred topics.
_CAP: Final = 1000
_STATES: Final = {
    "due": _("ready"), "scheduled": _("delayed"), "leased": _("reserved"), "dead": _("dead"),
}  # fmt: skip


class TopicForm(StoringForm):
    """A topic and its shards. Only under the lock of adding is it known that shards can go."""

    error_field = "shards"

    shards = count_field(
        _("Shards"),
        _("Can only be lowered while the removed shards hold no jobs, dead ones included."),
        most=64, initial=1, required=True,
    )  # fmt: skip

    class Meta:
        model = Topic
        fields = ("name",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            self.initial.update(shards=self.instance.shards)

    def clean_name(self) -> str:
        with reasons():
            return check_topic(self.cleaned_data["name"])

    def store(self, cleaned: dict[str, Any], using: str) -> Topic:
        name = self.instance.name if self.instance.pk else cleaned["name"]
        configure_topic(name, shards=cleaned["shards"], using=using)
        return Topic.objects.using(using).get(name=name)


class TopicOperation(Operation):
    """An operation on topics; ``pause_topic`` and ``resume_topic`` lock them."""

    noun = ngettext_lazy("%(count)s topic", "%(count)s topics", "count")
    permission = PAUSE_QUEUE

    def rows(self, call: Call, report: Report) -> list[Any]:
        ids = parse_ids(call.tokens)
        rows = list(call.written.filter(id__in=ids).order_by("name"))
        for each in set(ids) - {row.id for row in rows}:
            report.leave(GONE, unnamed(each))
        return rows


class Pause(TopicOperation):
    """Stops handing out the jobs of topics, to consumers and urls alike."""

    name, label, past = "pause", _("Pause"), _("Paused")
    help = _("Deliver no job of the topic until it is resumed.")
    warning = _(
        "No consumer is handed a job of these topics and no url is called until they are "
        "resumed. Jobs can be added and deleted, and those in flight are finished."
    )
    form_class = PauseForm

    def fits(self, row: Any) -> bool:
        return row.pause is None

    def change(self, row: Any, call: Call, report: Report) -> Any:
        by, reason = call.user.get_username(), call.options["reason"]
        is_paused = pause_topic(row.name, reason=reason, by=by, using=call.using)
        return is_paused or _("paused already")


class Resume(TopicOperation):
    """Hands out the jobs of topics again."""

    name, label, past = "resume", _("Resume"), _("Resumed")
    help = _("Hand out jobs of the topic again.")

    def fits(self, row: Any) -> bool:
        return row.pause is not None

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return resume_topic(row.name, using=call.using) or _("not paused")


def add_counts(rows: Sequence[Any], using: str) -> None:
    """Give each topic its counts and its pause."""
    kinds = {row.name: kinds_of_topic(row.name, row.shards, hosts=row.hosts) for row in rows}
    found = {
        each.kind: each for each in depths([k for some in kinds.values() for k in some], cap=_CAP,
        using=using)
    }  # fmt: skip
    first = [topic_kind(name) for name in kinds]
    pauses = {each.kind: each for each in Limit.objects.paused(using).filter(kind__in=first)}
    for row in rows:
        own = [found[kind] for kind in kinds[row.name]]
        row.counts = {state: total(each.counts[state] for each in own) for state in _STATES}
        row.pause = pauses.get(topic_kind(row.name))


@admin.register(Topic)
class TopicAdmin(StoredByForm):
    """By name; a topic is made by its first job, or here."""

    form = TopicForm
    operations = (Pause(), Resume())
    list_display = (
        "key_column", "state_column", "ready_column", "delayed_column", "reserved_column",
        "dead_column", "shards_column",
    )  # fmt: skip
    add_fields = ("name", "shards")
    readonly_fields = ("state_column", "holds")

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        add_counts(rows, using)

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None or self.has_change_permission(request, obj):
            return super().get_fields(request, obj)
        return self.get_readonly_fields(request, obj)

    # Columns

    key_column = column(_("topic"), lambda row: formats.key_label(row.name))
    ready_column = column(_("ready"), lambda row: formats.counted(row.counts["due"]))
    delayed_column = column(_("delayed"), lambda row: formats.counted(row.counts["scheduled"]))
    reserved_column = column(_("reserved"), lambda row: formats.counted(row.counts["leased"]))
    shards_column = column(_("shards"), "shards")

    @admin.display(description=_("state"))
    def state_column(self, row: Any) -> SafeString:
        if row.pause is None:
            return formats.state("due", _("open"))
        who = str(_("by %(by)s") % {"by": row.pause.paused_by}) if row.pause.paused_by else ""
        why = ": ".join(filter(None, [who, row.pause.reason]))
        paused = formats.state("expired", _("paused"))
        return format_html('{} <span class="dq-quiet">{}</span>', paused, why)

    @admin.display(description=_("dead"))
    def dead_column(self, row: Any) -> SafeString:
        count = row.counts["dead"]
        return formats.alarm(count.value, formats.counted(count))

    # The detail page

    @admin.display(description=_("jobs"))
    def holds(self, row: Any) -> SafeString:
        """Return the counts of all kinds, and links to the jobs and dead jobs of each."""
        counts = ", ".join(
            f"{formats.counted(count)} {_STATES[state]}" for state, count in row.counts.items()
        )
        kinds = kinds_of_topic(row.name, row.shards, hosts=row.hosts)
        links = format_html_join("", "<br>{}: {} · {} · {}", map(self._links, kinds))
        attempts = self.url("delayed_queue_http_callbackattempt_changelist", topic=row.name)
        return format_html("{} · {}{}", counts, formats.link(attempts, _("callbacks")), links)

    def _links(self, kind: str) -> tuple[SafeString, ...]:
        pages = (
            ("delayed_queue_message_changelist", _("jobs")),
            ("delayed_queue_deadletter_changelist", _("dead jobs")),
            ("delayed_queue_history", _("history and limits")),
        )
        links = (formats.link(self.url(name, kind=kind), words) for name, words in pages)
        return (formats.kind_label(kind), *links)
