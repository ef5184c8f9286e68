"""Schedules in every time zone, at every clock change of the years 2020 to 2040.

The expected instants come from the offsets before and after each change alone. A wall time is its
instant plus an offset. Its instant is ``wall - before`` if that lies before the change, and ``wall
- after`` if that does not. In a fold it has both, in a gap neither. The code under test reads wall
times with PEP 495 instead, and has no list of changes.

The tests cover all zones of the tz database: one of each set with equal offsets in those years,
found by probing once a day. Around each change they use hours at, just before, just after and
between its edges, and all four policies. They start from two days before it to a day after, on and
beside ticks.
"""

from __future__ import annotations

import zoneinfo
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache
from importlib import resources
from itertools import islice, pairwise, product, takewhile
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from delayed_queue.cron.rules import Gap, next_clock_change
from delayed_queue.cron.schedules import CronSchedule, DailySchedule
from delayed_queue.exceptions import InvalidConfiguration
from tests.support.sampling import sample

START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
STEP = timedelta(days=1)
DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
INSTANT = timedelta(microseconds=1)
ZONES = sorted(zoneinfo.available_timezones())
PARTS = 8
GAPS: list[Gap] = ["shift", "skip"]
FOLDS: list[Literal["first", "second"]] = ["first", "second"]
POLICIES = list(product(GAPS, FOLDS))


@dataclass(frozen=True)
class Change:
    """A change of a zone from one offset to another."""

    zone: str
    at: datetime
    before: timedelta
    after: timedelta

    def __str__(self) -> str:
        return f"{self.zone} {self.at:%Y-%m-%dT%H:%M}Z {self.before} to {self.after}"

    @property
    def edges(self) -> list[datetime]:
        """The wall times between which clocks jump."""
        naive = self.at.replace(tzinfo=None)
        return sorted([naive + self.before, naive + self.after])

    def readings(self, wall: datetime) -> list[datetime]:
        early = wall.replace(tzinfo=UTC) - self.before
        late = wall.replace(tzinfo=UTC) - self.after
        return [early] * (early < self.at) + [late] * (late >= self.at)

    def instants(self, walls: Iterable[datetime], gap: str, fold: str) -> list[datetime]:
        found: set[datetime] = set()
        for wall in walls:
            readings = self.readings(wall)
            if not readings and gap == "shift":
                found.add(wall.replace(tzinfo=UTC) - self.before)
            chosen = {"first": readings[:1], "second": readings[-1:], "both": readings}[fold]
            found.update(chosen)
        return sorted(found)

    def walls(self, hours: Iterable[time]) -> list[datetime]:
        """The relevant hours of every day, up to five days from the change."""
        midnights = [datetime.combine(self.at + day * DAY, time.min) for day in range(-6, 7)]
        return [datetime.combine(day, hour) for day, hour in product(midnights, hours)]


def offset(at: datetime, zone: zoneinfo.ZoneInfo) -> timedelta:
    value = at.astimezone(zone).utcoffset()
    assert value is not None
    return value


def bisect(low: datetime, high: datetime, zone: zoneinfo.ZoneInfo) -> datetime:
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if offset(middle, zone) == offset(low, zone):
            low = middle
        else:
            high = middle
    return high


def stored(name: str) -> bytes:
    """The stored rules of a zone, to test linked zones only once."""
    for folder in zoneinfo.TZPATH:
        if (path := Path(folder, name)).is_file():
            return path.read_bytes()
    return resources.files("tzdata").joinpath("zoneinfo", name).read_bytes()


@lru_cache
def changes() -> list[Change]:
    """Every clock change of the years, for one zone of each set with equal changes."""
    probes = [START + STEP * number for number in range((END - START) // STEP)]
    seen: set[tuple[timedelta, ...]] = set()
    found: list[Change] = []
    for name in {stored(each): each for each in ZONES}.values():
        zone = zoneinfo.ZoneInfo(name)
        offsets = tuple([offset(at, zone) for at in probes])
        if offsets in seen:
            continue
        seen.add(offsets)
        for (low, before), (high, after) in pairwise(zip(probes, offsets, strict=True)):
            if before != after:
                found.append(Change(name, bisect(low, high, zone), before, after))
    return found


def part_of_changes(part: int) -> list[Change]:
    return changes()[part::PARTS]


def sampled_hours(change: Change) -> list[time]:
    """Hours of the day around both edges of the change, and two far from it."""
    low, high = change.edges
    middle = low + (high - low) / 2
    near = [
        each + minutes * MINUTE for each in (low, middle, high) for minutes in (-15, -1, 0, 1, 15)
    ]
    return sorted({*(wall.time() for wall in near), time(0), time(12, 34, 56)})


def sampled_nows(change: Change, ticks: list[datetime]) -> list[datetime]:
    hours = (-50, -26, -1, 0, 0.5, 1, 24)
    nows = [change.at + hour * HOUR for hour in hours]
    close = [tick for tick in ticks if abs(tick - change.at) < 2 * HOUR][::5]
    return [*nows, change.at - INSTANT, *close, *(tick - INSTANT for tick in close)]


def within(times: Iterable[datetime], after: datetime, until: datetime) -> list[datetime]:
    return [at for at in times if after < at <= until]


def test_the_changes_are_there_and_far_enough_apart_to_be_looked_at_one_by_one():
    assert len(changes()) > 1000
    zones = {change.zone for change in changes()}
    assert len(zones) > 30
    for earlier, later in pairwise(changes()):
        assert earlier.zone != later.zone or later.at - earlier.at > 6 * DAY
    # The changes cover every shape: an hour, half an hour, two hours, forward, back, at midnight.
    jumps = {change.after - change.before for change in changes()}
    assert jumps >= {HOUR, -HOUR, HOUR / 2, -HOUR / 2, 2 * HOUR, -2 * HOUR}
    assert any(change.edges[0].time() == time(0) for change in changes())


@pytest.mark.parametrize("part", sample(range(PARTS), 0))
def test_daily_windows_hold_what_they_should(part):
    for change in part_of_changes(part):
        hours = sampled_hours(change)
        walls = change.walls(hours)
        for gap, fold in POLICIES:
            expected = change.instants(walls, gap, fold)
            schedule = DailySchedule(change.zone, hours, 2 * DAY, gap=gap, fold=fold)
            for now in sampled_nows(change, expected):
                got = schedule.next_times(now)
                assert got == within(expected, now, now + 2 * DAY), (str(change), gap, fold, now)


@pytest.mark.parametrize("part", sample(range(PARTS), 0))
def test_cron_expressions_with_fixed_times_run_as_daily_ones_do(part):
    for change in part_of_changes(part):
        for hour in [each for each in sampled_hours(change) if not each.second][::4]:
            expression = f"{hour.minute} {hour.hour} * * *"
            for gap, fold in POLICIES:
                schedule = CronSchedule(expression, change.zone, gap=gap, fold=fold)
                expected = change.instants(change.walls([hour]), gap, fold)
                now = change.at - 2 * DAY
                got = schedule.next_times(now)
                assert got == [at for at in expected if at > now][:4], (str(change), hour)


@pytest.mark.parametrize("part", sample(range(PARTS), 0))
@pytest.mark.parametrize("minutes", [60, 15])
def test_repeating_cron_expressions_keep_their_pace(part, minutes):
    expression = "0 * * * *" if minutes == 60 else f"*/{minutes} * * * *"
    pace = minutes * MINUTE
    for change in part_of_changes(part):
        schedule = CronSchedule(expression, change.zone)
        after, until = change.at - 2 * HOUR, change.at + 4 * HOUR
        got = schedule.times_between(after, until, 1000)
        midnight = datetime.combine(change.at - 2 * DAY, time.min)
        walls = [midnight + number * pace for number in range(5 * DAY // pace)]
        expected = change.instants(walls, "shift", "both")
        assert got == within(expected, after, until), str(change)
        if (change.after - change.before) % pace == timedelta(0):
            assert {later - earlier for earlier, later in pairwise(got)} == {pace}, str(change)


@pytest.mark.parametrize("part", sample(range(PARTS), 0))
def test_the_next_clock_change_is_found(part):
    for change in part_of_changes(part):
        assert next_clock_change(change.zone, change.at - INSTANT) == change.at, str(change)
        following = next_clock_change(change.zone, change.at)
        assert following is None or following > change.at
    assert next_clock_change("UTC", START) is None
    with pytest.raises(InvalidConfiguration, match="aware"):
        next_clock_change("UTC", START.replace(tzinfo=None))


# From here on history too: seconds in offsets, days left out or lived twice.


def all_instants(schedule: DailySchedule, after: datetime, days: int) -> Iterator[datetime]:
    """Yield every run from four days before to some days after, by brute force."""
    for day in range(-4, days + 4):
        for hour in schedule.hours:
            wall = datetime.combine(after.date() + day * DAY, hour, tzinfo=schedule.zone)
            first, second = wall.astimezone(UTC), wall.replace(fold=1).astimezone(UTC)
            if first <= second or schedule.gap == "shift":
                yield second if first < second and schedule.fold == "second" else first


times_of_day = st.builds(
    time, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]), st.sampled_from([0, 0, 0, 1, 59])
)
nows = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@settings(max_examples=settings().max_examples * 6)
@given(
    st.sampled_from(ZONES),
    st.lists(times_of_day, min_size=1, max_size=6),
    st.sampled_from(POLICIES),
    nows,
)
@example(
    "Pacific/Apia", [time(0), time(10)], ("shift", "first"), datetime(2011, 12, 30, tzinfo=UTC)
)
@example("Pacific/Apia", [time(10)], ("skip", "first"), datetime(2011, 12, 29, tzinfo=UTC))
@example("Pacific/Apia", [time(10)], ("shift", "first"), datetime(2011, 12, 30, 12, tzinfo=UTC))
@example("Pacific/Apia", [time(10)], ("shift", "second"), datetime(1892, 7, 4, 12, tzinfo=UTC))
@example("Pacific/Kwajalein", [time(9)], ("shift", "first"), datetime(1993, 8, 20, tzinfo=UTC))
@example("America/Juneau", [time(9)], ("shift", "second"), datetime(1867, 10, 18, tzinfo=UTC))
@example("Africa/Monrovia", [time(0)], ("shift", "first"), datetime(1972, 1, 7, tzinfo=UTC))
def test_any_window_of_any_zone_holds_what_it_should(zone, hours, policies, now):
    gap, fold = policies
    schedule = DailySchedule(zone, hours, 3 * DAY, gap=gap, fold=fold)
    until = now + 3 * DAY
    expected = sorted({at for at in all_instants(schedule, now, 5) if at > now})
    got = schedule.next_times(now)
    assert got == ([at for at in expected if at <= until] or expected[:1])
    chained = [now]
    while chained[-1] < got[-1]:
        chained.append(next(schedule.times_after(chained[-1])))
    assert chained[1:] == got
    # A repeated wall time is run in only one of its hours.
    walls = Counter(at.astimezone(schedule.zone).replace(tzinfo=None) for at in got)
    assert set(walls.values()) == {1}


@settings(max_examples=settings().max_examples * 2)
@given(
    st.sampled_from(ZONES),
    st.sampled_from(
        ["*/7 * * * *", "30 */3 * * *", "5,35 1,2,23 * * *", "59 23 * * *", "0 0 1 * *"]
    ),
    st.sampled_from(["shift", "skip"]),
    st.sampled_from([None, "first", "second"]),
    nows,
)
def test_cron_times_do_not_depend_on_where_one_starts(zone, expression, gap, fold, now):
    schedule = CronSchedule(expression, zone, gap=gap, fold=fold)
    times = list(islice(schedule.times_after(now), 12))
    assert all(earlier < later for earlier, later in pairwise([now, *times]))
    for number, start in enumerate(times[:-1]):
        after = schedule.times_after(start)
        assert list(takewhile(lambda at: at <= times[-1], after)) == times[number + 1 :]
