"""The next runs of a schedule, in its zone and in UTC, with the next change of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils import dateformat
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from delayed_queue.admin import formats
from delayed_queue.cron.keeper import declared
from delayed_queue.cron.registry import CronEntry, Definition, schedule_of
from delayed_queue.cron.rules import Schedule as Rule
from delayed_queue.cron.rules import ZonedSchedule, next_clock_change
from delayed_queue.cron.service import in_default_zone
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.models import Schedule

RUNS_SHOWN: Final = 10
_SECOND: Final = timedelta(seconds=1)


class ClockChange(NamedTuple):
    """A jump of a zone's clocks: when, and what they show before and after."""

    at: datetime
    before: datetime
    after: datetime

    def __str__(self) -> str:
        # Both times in full: a move across the date line changes the date, not the hour.
        forward = _("Next clock change: %(before)s becomes %(after)s, forward by %(span)s.")
        back = _("Next clock change: %(before)s becomes %(after)s, back by %(span)s.")
        facts = {
            "before": f"{self.before:%Y-%m-%d %H:%M}", "after": f"{self.after:%Y-%m-%d %H:%M}",
            "span": formats.human(self.after - self.before),
        }  # fmt: skip
        return str((forward if self.after > self.before else back) % facts)


def declared_entry(kind: str, key_prefix: str) -> CronEntry | None:
    """Return the declaration of this process under the prefix, if any."""
    return next((each for each in declared() if each.id == (kind, key_prefix)), None)


def rule_of(row: Schedule) -> Rule:
    """Return the row's rule in its zone, or raise InvalidConfiguration with the reason."""
    if row.type != "other":
        definition = Definition(row.type, row.expression, row.timezone, row.gap, row.fold)
        return in_default_zone(schedule_of(definition))
    entry = declared_entry(row.kind, row.key_prefix)
    if entry is None or not isinstance(entry.schedule, Rule):
        said = gettext("Its times are defined in %(module)s, which is not loaded here.")
        raise InvalidConfiguration(said % {"module": row.declared_in})
    return in_default_zone(entry.schedule)


def zone_of(rule: Rule) -> ZoneInfo:
    """Return the zone of the rule; the project's if it has none."""
    return rule.zone if isinstance(rule, ZonedSchedule) else ZoneInfo(settings.TIME_ZONE)


def next_change(zone: ZoneInfo, now: datetime) -> ClockChange | None:
    at = next_clock_change(zone.key, now)
    if at is None:
        return None
    offset = (at - _SECOND).astimezone(zone).utcoffset() or timedelta(0)
    wall = at.astimezone(UTC).replace(tzinfo=None)
    return ClockChange(at, wall + offset, at.astimezone(zone).replace(tzinfo=None))


def local(at: datetime, zone: ZoneInfo) -> str:
    """Return the instant in the schedule's zone."""
    return dateformat.format(at.astimezone(zone), "D Y-m-d H:i:s T")


def next_run(row: Schedule, now: datetime) -> SafeString:
    """Return the next time, local above UTC; or why there is none."""
    try:
        rule = rule_of(row)
    except InvalidConfiguration as error:
        return _reason(error)
    if not row.is_enabled:
        return formats.NOTHING
    at = next(rule.times_after(now))
    shown = formats.moment(at, local(at, zone_of(rule)))
    utc = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('{}<br><span class="dq-quiet">{}</span>', shown, utc)


def preview(row: Schedule, now: datetime) -> SafeString:
    """Return a table of the next runs and the next change of the clocks."""
    try:
        rule = rule_of(row)
    except InvalidConfiguration as error:
        return _reason(error)
    zone = zone_of(rule)
    lines = [
        (local(at, zone), f"{at:%Y-%m-%d %H:%M:%S}", formats.relative(at, now))
        for at in islice(rule.times_after(now), RUNS_SHOWN)
    ]
    table = formats.table((f"{_('Local')} ({zone.key})", "UTC", _("when")), lines)
    paused = _("Paused: these run only after the schedule is enabled.")
    change = next_change(zone, now) or _(
        "The clocks of %(zone)s do not change within the next 400 days."
    ) % {"zone": zone.key}
    before = "" if row.is_enabled else formats.quiet(paused)
    return format_html("{}{}{}", before, table, formats.quiet(change))


def _reason(error: InvalidConfiguration) -> SafeString:
    return format_html('<span class="dq-alarm">{}</span>', error)
