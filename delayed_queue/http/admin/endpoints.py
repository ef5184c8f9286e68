"""The endpoints of callbacks and their hosts: limits, secrets, and suspensions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any, Final, cast

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from delayed_queue.admin import formats
from delayed_queue.admin.base import RecordAdmin
from delayed_queue.admin.fields import count_field
from delayed_queue.admin.formats import column, time_column
from delayed_queue.admin.operations import Call, Operation, Report
from delayed_queue.http.admin.forms import StoredByForm, StoringForm
from delayed_queue.http.admin.tokens import at_once
from delayed_queue.http.callbacks import operating
from delayed_queue.http.jobs.kinds import Way, topic_kind
from delayed_queue.http.models import Endpoint, Host, Topic
from delayed_queue.observe.overview import depths, total

_HOSTS: Final = ngettext_lazy("%(count)s host", "%(count)s hosts", "count")
_ENDPOINTS: Final = ngettext_lazy("%(count)s endpoint", "%(count)s endpoints", "count")
_LIMITS: Final = ("per_second", "burst", "concurrency")
# Topics and kinds that are read at most to count the jobs that wait for hosts.
_MAX_TOPICS: Final = 1000
_MAX_KINDS: Final = 200


class Close(Operation):
    """Sends to hosts again before their suspension ends."""

    name, label = "close", _("Send again")
    past, noun = _("Sending again to"), _HOSTS
    help = _("Send to the host again now, and forget its failures.")
    permission = "delayed_queue_http.close_host"
    warning = _(
        "Workers send to these hosts again within a second. Deferred jobs follow within five "
        "minutes. A host that still fails is suspended again; each failure counts as an attempt of "
        "its job."
    )

    def fits(self, row: Any) -> bool:
        return row.open_until is not None

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return Host.objects.close(row.name, using=call.using) or _("sent to already")

    def audit(self, row: Any, call: Call) -> str:
        return "Sending again."


def add_waiting(rows: Sequence[Any], using: str) -> None:
    """Give each host the number of jobs in shards of its own, due or not."""
    kinds: dict[Any, list[str]] = {row: [] for row in rows} | _kinds_of(
        {row.name: row for row in rows}, using
    )
    counted = [kind for each in kinds.values() for kind in each][:_MAX_KINDS]
    found = {each.kind: each for each in depths(counted, using=using)} if counted else {}
    for row, own in kinds.items():
        depth = [found[kind] for kind in own if kind in found]
        waiting = total(count for each in depth for count in (each.due, each.scheduled))
        # Kinds beyond the limit are not counted.
        row.waiting = waiting._replace(is_cut=waiting.is_cut or len(depth) < len(own))


def _kinds_of(hosts: dict[str, Any], using: str) -> dict[Any, list[str]]:
    """Return the kinds that hold callbacks to one of the hosts alone."""
    topics = Topic.objects.using(using).exclude(hosts="").order_by("name")[:_MAX_TOPICS]
    found: dict[Any, list[str]] = {}
    for topic in topics:
        for shard, name in enumerate(topic.hosts.split()):
            if name in hosts:
                kind = topic_kind(topic.name, shard, Way.CALLBACK)
                found.setdefault(hosts[name], []).append(kind)
    return found


@admin.register(Host)
class HostAdmin(RecordAdmin):
    """The latest that failed first; a host that never failed has no row."""

    operations = (Close(),)
    list_display = (
        "key_column", "state_column", "waiting_column", "since_column", "again_column",
        "openings_column", "reason_column",
    )  # fmt: skip
    readonly_fields = (*list_display[1:-1], "reason_shown")

    def complete(self, request: HttpRequest, rows: Sequence[Any], using: str) -> None:
        add_waiting(rows, using)

    key_column = column(_("host"), lambda row: formats.key_label(row.name))
    state_column = column(_("state"), lambda row: breaker_state(row))
    waiting_column = column(_("waiting jobs"), lambda row: formats.counted(row.waiting))
    since_column = time_column(_("since"), "opened_at")
    again_column = time_column(_("probed"), "open_until")
    openings_column = column(_("suspensions in a row"), "openings")
    reason_column = column(_("why"), lambda row: formats.shortened(row.reason, 120))
    reason_shown = column(_("why"), lambda row: row.reason and formats.block(row.reason))


def breaker_state(row: Any) -> SafeString:
    """Return the state of a host's circuit breaker in an operator's words."""
    if row.open_until is None:
        return formats.state("due", _("sending"))
    if row.open_until > row.read_at:
        until = formats.moment(row.open_until, f"{row.open_until.astimezone(UTC):%H:%M:%S} UTC")
        return format_html("{} {} {}", formats.state("alarm", _("suspended")), _("until"), until)
    return formats.state("expired", _("probing"))


class EndpointForm(StoringForm):
    """A url to register, and the limits of what is below it."""

    error_field = "url"

    url = forms.CharField(
        label=_("Prefix"),
        widget=forms.TextInput(attrs={"size": 60}),
        help_text=_(
            "For example https://example.com/hooks. The longest prefix of a job's url applies."
        ),
    )
    per_second = forms.FloatField(
        label=_("Rate"),
        required=False,
        min_value=0.001,
        help_text=_("Calls per second. Empty: no limit."),
    )
    burst = count_field(
        _("Burst"), _("Calls at once, after a quiet time."), initial=1, required=True
    )
    concurrency = count_field(_("Concurrency"), _("Calls at the same time. Empty: no limit."))

    class Meta:
        model = Endpoint
        fields = _LIMITS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:  # another url would be another endpoint
            del self.fields["url"]

    def store(self, cleaned: dict[str, Any], using: str) -> Endpoint:
        limits = {name: cleaned[name] for name in _LIMITS}
        if self.instance.pk is not None:
            self.instance.save(update_fields=list(limits), using=using)
            return cast(Endpoint, self.instance)
        self.secret = operating.register_endpoint(cleaned["url"], **limits, using=using)
        return operating.endpoint_of(cleaned["url"], using=using)


class Enable(Operation):
    name, label = "enable", _("Enable")
    past, noun = _("Enabled"), _ENDPOINTS
    help = _("Send to the endpoint again. Deferred jobs follow within five minutes.")
    permission = "delayed_queue_http.disable_endpoint"

    def fits(self, row: Any) -> bool:
        return row.disabled_at is not None

    def change(self, row: Any, call: Call, report: Report) -> Any:
        return operating.enable_endpoint(row, using=call.using) or _("not disabled")


class Disable(Operation):
    name, label = "disable", _("Disable")
    past, noun = _("Disabled"), _ENDPOINTS
    help = _("Stop sending to the endpoint; its jobs wait.")
    permission = "delayed_queue_http.disable_endpoint"
    warning = _("Nothing is sent to these endpoints until they are enabled. Their jobs wait.")

    def fits(self, row: Any) -> bool:
        return row.disabled_at is None

    def change(self, row: Any, call: Call, report: Report) -> Any:
        reason = f"By {call.user.get_username()}."
        return operating.disable_endpoint(row, reason, using=call.using) or _("disabled already")


class Rotate(Operation):
    name, label = "rotate", _("Rotate the secret")
    past, noun = _("Rotated the secret of"), _ENDPOINTS
    help = _("Make a new secret, shown once. For 24 hours calls are signed with both secrets.")
    permission = "delayed_queue_http.rotate_endpoint"
    warning = _(
        "Each endpoint gets a new secret, which is shown once. For 24 hours calls "
        "are signed with both secrets. After that, receivers that know only the "
        "old secret refuse them."
    )

    def change(self, row: Any, call: Call, report: Report) -> Any:
        secret = operating.rotate_secret(row, using=call.using)
        said = _("The secret of %(prefix)s, shown only now: %(secret)s")
        report.notes.append(said % {"prefix": row.prefix, "secret": secret})
        return True


@admin.register(Endpoint)
class EndpointAdmin(StoredByForm):
    """The newest first; one for an origin is made by the first call to it."""

    name_field = "prefix"
    form = EndpointForm
    secret_text = _("The secret, shown only now: <code>{}</code>.")
    operations = (Rotate(), Disable(), Enable())
    list_display = (
        "key_column", "state_column", "rate_column", "concurrency_column", "rotated_column",
    )  # fmt: skip
    add_fields = ("url", *_LIMITS)
    readonly_fields = ("state_column", "rotated_column")

    key_column = column(_("endpoint"), lambda row: formats.key_label(row.prefix))
    concurrency_column = column(
        _("in progress"),
        lambda row: _("any") if row.concurrency is None else formats.number(row.concurrency),
    )

    @admin.display(description=_("state"))
    def state_column(self, row: Any) -> SafeString:
        if row.disabled_at is None:
            return formats.state("due", _("enabled"))
        return format_html(
            '{} {} <span class="dq-quiet">{}</span>', formats.state("alarm", _("disabled")),
            formats.since(row.disabled_at, row.read_at), row.disabled_reason,
        )  # fmt: skip

    @admin.display(description=_("rate"))
    def rate_column(self, row: Any) -> str:
        if row.per_second is None:
            return str(_("any"))
        return f"{formats.per_second(row.per_second)}, {at_once(row.burst)}"

    @admin.display(description=_("secret"))
    def rotated_column(self, row: Any) -> SafeString:
        at = row.rotated_at or row.created_at
        return formats.moment(at, f"{_('made')} {formats.relative(at, row.read_at)}")
