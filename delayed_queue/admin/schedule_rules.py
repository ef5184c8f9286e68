"""What a stored schedule runs and when, worked out for an operator to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from django.conf import settings
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

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
    """When a zone's clocks jump, and what they show before and after."""

    at: datetime
    before: datetime
    after: datetime

    def __str__(self) -> str:
        # Both walls: a date line that moves changes the date, not the hour.
        way = "forward" if self.after > self.before else "back"
        return (
            f"{self.before:%Y-%m-%d %H:%M} becomes {self.after:%Y-%m-%d %H:%M}: the clocks go "
            f"{way} by {formats.human(self.after - self.before)}"
        )


def declared_entry(kind: str, key_prefix: str) -> CronEntry | None:
    """Return what the code of this process declares under the prefix, if anything."""
    return next((each for each in declared() if each.id == (kind, key_prefix)), None)


def rule_of(row: Schedule) -> Rule:
    """Return the row's rule in its zone, or raise InvalidConfiguration with the reason."""
    if row.type != "other":
        definition = Definition(row.type, row.expression, row.timezone, row.gap, row.fold)
        return in_default_zone(schedule_of(definition))
    entry = declared_entry(row.kind, row.key_prefix)
    if entry is None or not isinstance(entry.schedule, Rule):
        raise InvalidConfiguration(f"Only {row.declared_in} knows when, which is not loaded here.")
    return in_default_zone(entry.schedule)


def zone_of(rule: Rule) -> ZoneInfo:
    """Return the zone to show times in: for a rule that has none, the project's."""
    return rule.zone if isinstance(rule, ZonedSchedule) else ZoneInfo(settings.TIME_ZONE)


def next_change(zone: ZoneInfo, now: datetime) -> ClockChange | None:
    at = next_clock_change(zone.key, now)
    if at is None:
        return None
    offset = (at - _SECOND).astimezone(zone).utcoffset() or timedelta(0)
    wall = at.astimezone(UTC).replace(tzinfo=None)
    return ClockChange(at, wall + offset, at.astimezone(zone).replace(tzinfo=None))


def local(at: datetime, zone: ZoneInfo) -> str:
    return f"{at.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}"


def next_run(row: Schedule, now: datetime) -> SafeString:
    """Return the next time, local above UTC; or why there is none."""
    try:
        rule = rule_of(row)
    except InvalidConfiguration as error:
        return format_html('<span class="dq-alarm">{}</span>', error)
    if not row.is_enabled:
        return formats.NOTHING
    at = next(rule.times_after(now))
    shown = formats.moment(at, local(at, zone_of(rule)))
    utc = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('{}<br><span class="dq-quiet">{}</span>', shown, utc)


def preview(row: Schedule, now: datetime) -> SafeString:
    """Return a table of the next runs, with the next change of the clocks in its place."""
    try:
        rule = rule_of(row)
    except InvalidConfiguration as error:
        return format_html('<span class="dq-alarm">{}</span>', error)
    zone = zone_of(rule)
    times = list(islice(rule.times_after(now), RUNS_SHOWN))
    change = next_change(zone, now)
    lines = [_line(at, zone, now) for at in times]
    note = _beyond(change, zone)
    if change is not None and change.at <= times[-1]:
        place = sum(at < change.at for at in times)
        lines.insert(place, _change_line(change))
        note = ""
    head = format_html(
        '<tr><th scope="col">Local ({})</th><th scope="col">UTC</th><th scope="col"></th></tr>',
        zone.key,
    )
    body = format_html_join("", "{}", ((line,) for line in lines))
    paused = "" if row.is_enabled else formats.quiet("Paused: these run only once it is enabled.")
    table = format_html(
        '<div class="dq-overview"><table class="dq-runs"><thead>{}</thead><tbody>{}</tbody></table>'
        "</div>",
        head, body,
    )  # fmt: skip
    return format_html("{}{}{}", paused, table, formats.quiet(note) if note else "")


def _line(at: datetime, zone: ZoneInfo, now: datetime) -> SafeString:
    return format_html(
        '<tr class="dq-run"><td class="dq-at" data-label="Local">{}</td>'
        '<td class="dq-at" data-label="UTC">{}</td><td class="dq-quiet" data-label="">{}</td></tr>',
        local(at, zone),
        f"{at:%Y-%m-%d %H:%M:%S}",
        formats.relative(at, now),
    )


def _change_line(change: ClockChange) -> SafeString:
    return format_html('<tr class="dq-change"><td colspan="3" data-label="">{}</td></tr>', change)


def _beyond(change: ClockChange | None, zone: ZoneInfo) -> str:
    if change is None:
        return f"The clocks of {zone.key} do not change within the next 400 days."
    return f"Next clock change, after these: {change}."
