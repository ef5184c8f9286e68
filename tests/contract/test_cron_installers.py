"""Installers that keep ticks written ahead: contract lines C5, C6 and C8 to C13."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from delayed_queue import (
    CronMessage,
    CronSchedule,
    DailySchedule,
    DelayedQueue,
    Envelope,
    PeriodicSchedule,
)
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.queues.cron import Installer, ManyInstaller
from delayed_queue.schedules import MissedTicks, Schedule
from delayed_queue.testing import ManualClock
from tests.contract.support import DAY, HOUR, MINUTE, PATIENCE, SECOND, MakeQueue, leased

A, B = "a" * 32, "b" * 32
HOURLY = PeriodicSchedule(HOUR)


@pytest.fixture
def clock(manual_clock: ManualClock) -> ManualClock:
    return manual_clock


def payload_of(at: datetime) -> str:
    return at.isoformat()


def hourly(queue: DelayedQueue, config_hash: str = A, payload: Any = "tick") -> Installer:
    """Keeps the next two full hours installed, looking every ten minutes."""

    def messages(now: datetime) -> list[CronMessage]:
        hour = now.replace(minute=0, second=0, microsecond=0)
        return [CronMessage(payload, hour + each * HOUR) for each in (1, 2)]

    return ManyInstaller(queue, "report", config_hash, 10 * MINUTE, messages)


def drained(queue: DelayedQueue) -> list[Envelope]:
    """Take and acknowledge all that is due."""
    batch = queue.try_poll_many(1000)
    batch.acknowledge()
    return list(batch)


def payloads_over(
    queue: DelayedQueue, clock: ManualClock, installer: Installer, days: int, step: timedelta
) -> list[str]:
    """Run the installer and handle what is due, step by step; return the payloads in order."""
    payloads = []
    for _ in range(days * (DAY // step)):
        installer.run()
        payloads += [each.payload for each in drained(queue)]
        clock.advance(step)
    return payloads


def test_c5_payloads_are_replaced_by_the_first_run_alone(queue: DelayedQueue):
    hourly(queue, payload="old").run()
    restarted = hourly(queue, payload="new")

    assert restarted.run().updated == 2
    hourly(queue, payload="newest").run()
    assert (restarted.run().kept, restarted.run().updated) == (2, 0)


def test_c5_a_first_run_that_fails_does_not_use_it_up(queue: DelayedQueue):
    hourly(queue, payload="old").run()
    payloads: list[Any] = [object(), "new"]
    now = queue._read_schedule("report")[0]
    at = datetime.fromtimestamp(now // 1000, UTC) + HOUR
    installer = ManyInstaller(
        queue, "report", A, MINUTE, lambda _: [CronMessage(payloads.pop(0), at)]
    )

    with pytest.raises(ValueError, match="encode"):
        installer.run()
    assert installer.run().updated == 1


def test_c6_the_newer_configuration_wins_and_the_older_says_so_once(
    queue: DelayedQueue, clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    old, new = hourly(queue, A), hourly(queue, B)
    old.run()
    assert new.run().removed == 2
    for _ in range(5):
        clock.advance(10 * MINUTE)
        assert old.run().superseded_by == B
        assert new.run().superseded_by == ""
    warnings = [each for each in caplog.records if "schedule_superseded" in each.message]
    assert len(warnings) == 1
    assert "schedule=orders|json/report" in warnings[0].getMessage()


def test_c6_the_older_comes_back_when_the_newer_falls_silent(
    queue: DelayedQueue, clock: ManualClock
):
    old, new = hourly(queue, A), hourly(queue, B)
    old.run()
    new.run()
    clock.advance(30 * MINUTE)
    assert old.run().superseded_by == B
    clock.advance(MINUTE)
    assert old.run().is_installed
    assert new.run().superseded_by == A


def test_c6_an_explicit_install_wins_always(queue: DelayedQueue, clock: ManualClock):
    old, new = hourly(queue, A), hourly(queue, B)
    old.run()
    new.run()
    message = CronMessage("by hand", clock() + HOUR)
    assert queue.cron.install_tick(A, "report", [message]).removed == 2
    clock.advance(DAY)
    assert new.run().superseded_by == A


def test_c6_no_more_than_twenty_replaced_ones_are_remembered(queue: DelayedQueue):
    for number in range(30):
        hourly(queue, f"hash{number}").run()
    assert hourly(queue, "hash20").run().superseded_by == "hash29"
    assert hourly(queue, "hash0").run().superseded_by == ""


def test_c8_installs_at_once_and_again_and_closing_leaves_the_ticks(
    make_shared_queue: MakeQueue,
):
    queue = make_shared_queue("orders")
    runs = threading.Semaphore(0)

    def messages(now: datetime) -> list[CronMessage]:
        runs.release()
        return [CronMessage("tick", now + HOUR)]

    with queue.cron.install(A, "report", timedelta(milliseconds=10), messages) as handle:
        assert all(runs.acquire(timeout=PATIENCE) for _ in range(3))
        assert handle.wait(PATIENCE)
    assert handle.close()
    assert queue.stats().scheduled >= 2


def test_c8_goes_on_after_any_error(make_shared_queue: MakeQueue, caplog: pytest.LogCaptureFixture):
    queue = make_shared_queue("orders")
    failures: list[Exception] = [RuntimeError("boom"), ValueError("bang")]

    def messages(now: datetime) -> list[CronMessage]:
        if failures:
            raise failures.pop()
        return [CronMessage("tick", now + HOUR)]

    with queue.cron.install(A, "report", timedelta(milliseconds=10), messages) as handle:
        assert handle.wait(PATIENCE)
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "event=install_failed schedule=orders|json/report" in errors[0].getMessage()
    assert queue.stats().scheduled >= 1


def test_c8_close_ends_a_long_sleep(make_shared_queue: MakeQueue):
    handle = make_shared_queue("orders").cron.install(A, "report", DAY, lambda _: [])
    assert handle.wait(PATIENCE)
    assert handle.close()


def test_c8_what_a_generator_returns_after_close_is_not_installed(
    make_shared_queue: MakeQueue, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("delayed_queue.queues.cron.CLOSE_SECONDS", 0.01)
    queue = make_shared_queue("orders")
    started, finish = threading.Event(), threading.Event()

    def messages(now: datetime) -> list[CronMessage]:
        started.set()
        assert finish.wait(PATIENCE)
        return [CronMessage("tick", now + HOUR)]

    handle = queue.cron.install(A, "report", DAY, messages)
    assert started.wait(PATIENCE)
    assert not handle.close()
    finish.set()
    monkeypatch.setattr("delayed_queue.queues.cron.CLOSE_SECONDS", PATIENCE)
    assert handle.close()
    assert not handle.wait(0)
    assert queue.stats().scheduled == 0


@pytest.mark.parametrize("interval", [timedelta(0), -SECOND, timedelta(microseconds=999)])
def test_c8_intervals_that_are_refused(queue: DelayedQueue, interval: timedelta):
    with pytest.raises(ValueError, match="interval"):
        queue.cron.install(A, "report", interval, lambda _: [])
    with pytest.raises(ValueError, match="period"):
        queue.cron.install_periodic_tick("report", interval, payload_of)


@pytest.mark.parametrize("prefix", ["", " ", "x" * 180])
def test_c8_prefixes_that_are_refused(queue: DelayedQueue, prefix: str):
    with pytest.raises(InvalidConfiguration):
        queue.cron.install(A, prefix, SECOND, lambda _: [])
    with pytest.raises(InvalidConfiguration):
        queue.cron.install_schedule(prefix, HOURLY, payload_of)


def test_c9_the_next_four_periods_are_written_ahead(queue: DelayedQueue, clock: ManualClock):
    clock.set(datetime(2030, 5, 1, 10, 37, 42, 123_000, tzinfo=UTC))
    installer = queue.cron.installer("report", HOURLY, payload_of)

    assert installer.run().created == 4
    assert installer.interval == 15 * MINUTE
    clock.set(datetime(2030, 5, 1, 15, tzinfo=UTC))
    assert [each.payload for each in drained(queue)] == [
        f"2030-05-01T{hour}:00:00+00:00" for hour in (11, 12, 13, 14)
    ]
    assert installer.config_hash == "4916474562628112070d240d515ba44d"


def test_c9_one_call_does_it(make_shared_queue: MakeQueue):
    queue = make_shared_queue("orders")
    with queue.cron.install_periodic_tick("report", HOUR, payload_of) as handle:
        assert handle.wait(PATIENCE)
    assert queue.stats().scheduled == 4


def test_c10_a_daily_schedule_fills_its_window(make_shared_queue: MakeQueue, clock: ManualClock):
    queue = make_shared_queue("orders", clock=clock)
    schedule = DailySchedule(
        timezone="UTC", hours=[time(18), time(0), time(18)], schedule_in_advance=2 * DAY
    )
    with queue.cron.install_daily_schedule("report", schedule, payload_of) as handle:
        assert handle.wait(PATIENCE)
    # Midnight itself is not after now.
    assert queue.stats().scheduled == 4
    assert queue.stats().due == 0


ZONE = ZoneInfo("Europe/Bucharest")
# The clocks go from 03:00 to 04:00 on 31 March 2030, from 04:00 to 03:00 on 27 October.
SPRING = datetime(2030, 3, 30, tzinfo=ZONE)
AUTUMN = datetime(2030, 10, 26, tzinfo=ZONE)


def daily(*hours: str, **options: Any) -> DailySchedule:
    return DailySchedule(
        timezone=ZONE.key, hours=[time.fromisoformat(each) for each in hours], **options
    )


def cron(expression: str, **options: Any) -> CronSchedule:
    return CronSchedule(expression, timezone=ZONE.key, **options)


@pytest.mark.parametrize(
    ("schedule", "start", "local"),
    [
        (daily("03:30", "04:15"), SPRING, ["30 03:30", "30 04:15", "31 04:15", "31 04:30"]),
        (daily("03:30", "04:30"), SPRING, ["30 03:30", "30 04:30", "31 04:30"]),
        (
            daily("03:30", "04:15", fold="second"),
            AUTUMN,
            ["26 03:30", "26 04:15", "27 03:30", "27 04:15"],
        ),
        (daily("03:30", gap="skip"), SPRING, ["30 03:30"]),
        (cron("30 3 * * *"), SPRING, ["30 03:30", "31 04:30"]),
        (daily("03:30"), AUTUMN, ["26 03:30", "27 03:30"]),
        (cron("30 3 * * *"), AUTUMN, ["26 03:30", "27 03:30"]),
        (cron("30 3 * * *", fold="second"), AUTUMN, ["26 03:30", "27 03:30"]),
    ],
)
def test_c11_on_the_days_the_clocks_change_each_hour_runs_once(
    queue: DelayedQueue,
    clock: ManualClock,
    schedule: Schedule,
    start: datetime,
    local: list[str],
):
    clock.set(start)
    installer = queue.cron.installer("report", schedule, payload_of)

    payloads = payloads_over(queue, clock, installer, 2, 5 * MINUTE)

    found = [f"{datetime.fromisoformat(each).astimezone(ZONE):%d %H:%M}" for each in payloads]
    assert found == local


@pytest.mark.parametrize("start", [SPRING, AUTUMN])
def test_c11_interval_expressions_lose_nothing_and_gain_nothing(
    queue: DelayedQueue, clock: ManualClock, start: datetime
):
    clock.set(start)
    installer = queue.cron.installer("report", cron("*/30 * * * *"), payload_of)

    payloads = payloads_over(queue, clock, installer, 2, 10 * MINUTE)

    times = [datetime.fromisoformat(each) for each in payloads]
    assert {later - earlier for earlier, later in pairwise(times)} == {30 * MINUTE}


def test_c12_expressions_of_five_and_six_fields_and_names(queue: DelayedQueue, clock: ManualClock):
    for number, expression in enumerate(["*/5 * * * *", "0 0 * * * 30", "@hourly"]):
        schedule = CronSchedule(expression)
        assert queue.cron.installer(f"n{number}", schedule, payload_of).run().created == 4


def test_c12_the_zone_of_the_settings_unless_it_names_one(queue: DelayedQueue, settings: Any):
    settings.TIME_ZONE = ZONE.key
    plain = queue.cron.installer("report", CronSchedule("30 3 * * *"), payload_of)
    named = queue.cron.installer("report", cron("30 3 * * *"), payload_of)
    assert plain.config_hash == named.config_hash


@pytest.mark.parametrize(
    ("policy", "cap", "hours"),
    [("latest", 100, [9]), ("skip", 100, []), ("all", 3, [7, 8, 9]), ("all", 100, [5, 6, 7, 8, 9])],
)
def test_c13_ticks_missed_while_nobody_was_up(
    queue: DelayedQueue, clock: ManualClock, policy: str, cap: int, hours: list[int]
):
    def installer() -> Installer:
        return queue.cron.installer(
            "report", HOURLY, payload_of, missed=MissedTicks(policy), missed_cap=cap
        )

    assert installer().run().created == 4  # 01:00 to 04:00
    clock.advance(9 * HOUR + 30 * MINUTE)
    drained(queue)

    installer().run()

    envelopes = drained(queue)
    assert [each.scheduled_at.hour for each in envelopes] == hours
    assert [each.payload for each in envelopes] == [
        payload_of(each.scheduled_at) for each in envelopes
    ]
    installer().run()
    assert drained(queue) == []


def test_c13_what_was_taken_down_on_purpose_was_not_missed(queue: DelayedQueue, clock: ManualClock):
    installer = queue.cron.installer("report", HOURLY, payload_of)
    installer.run()
    queue.cron.uninstall_tick(installer.config_hash, "report")
    clock.advance(DAY)
    installer.run()
    assert drained(queue) == []


@pytest.mark.parametrize(("policy", "cap"), [("some", 100), ("all", 0)])
def test_c13_policies_that_are_refused(queue: DelayedQueue, policy: str, cap: int):
    with pytest.raises(InvalidConfiguration):
        queue.cron.installer("report", HOURLY, payload_of, missed=policy, missed_cap=cap)


def test_c7_a_slow_generator_repeats_nothing(queue: DelayedQueue, clock: ManualClock):
    """While it works on the ticks of 01:00, another installs and handles them."""
    fast = queue.cron.installer("report", HOURLY, payload_of)

    def slow(at: datetime) -> str:
        if clock() < datetime(2030, 1, 1, 6, tzinfo=UTC):
            fast.run()
            clock.advance(2 * HOUR)
            seen.extend(drained(queue))
        return payload_of(at)

    seen: list[Envelope] = []
    queue.cron.installer("report", HOURLY, slow).run()
    clock.advance(12 * HOUR)
    seen.extend(drained(queue))
    assert len({each.key for each in seen}) == len(seen)
    assert {each.scheduled_at.hour for each in seen} >= set(range(1, 9))


def test_a_run_generates_only_what_is_not_installed_yet(queue: DelayedQueue, clock: ManualClock):
    asked: list[datetime] = []

    def generator(at: datetime) -> str:
        asked.append(at)
        return payload_of(at)

    installer = queue.cron.installer("report", HOURLY, generator)
    installer.run()
    assert len(asked) == 4
    installer.run()
    clock.advance(HOUR)
    installer.run()
    assert len(asked) == 5


def test_c4_a_running_tick_is_not_touched_by_a_restart(queue: DelayedQueue, clock: ManualClock):
    make: Callable[[str], Installer] = lambda text: queue.cron.installer(  # noqa: E731
        "report", HOURLY, lambda at: text
    )
    make("old").run()
    clock.advance(HOUR)
    envelope = leased(queue)
    make("new").run()
    assert envelope.payload == "old"
    assert envelope.acknowledge()
