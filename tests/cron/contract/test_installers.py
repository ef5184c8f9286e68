"""Installers that keep ticks written ahead: contract lines C4 to C10."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from delayed_queue import CronMessage, DailySchedule, DelayedQueue, Envelope
from delayed_queue.cron.service import Installer
from delayed_queue.exceptions import InvalidConfiguration
from delayed_queue.testing import ManualClock
from tests.cron.contract.schedules import HOURLY, A, B, drained, hourly, payload_of
from tests.queue.contract.support import DAY, HOUR, MINUTE, SECOND, TIMEOUT, MakeQueue, leased


def test_c5_payloads_are_replaced_by_the_first_run_alone(queue: DelayedQueue):
    hourly(queue, payload="old").run()
    restarted = hourly(queue, payload="new")

    assert restarted.run().updated == 2
    hourly(queue, payload="newest").run()
    assert (restarted.run().kept, restarted.run().updated) == (2, 0)


def test_c5_a_first_run_that_fails_does_not_use_it_up(queue: DelayedQueue):
    hourly(queue, payload="old").run()
    payloads: list[Any] = [object(), "new"]
    now = queue.cron.ticks.read_schedule("report")[0]
    at = datetime.fromtimestamp(now // 1000, UTC) + HOUR
    installer = Installer(
        queue.cron.ticks, "report", A, MINUTE, lambda _: [CronMessage(payloads.pop(0), at)]
    )

    with pytest.raises(ValueError, match="encode"):
        installer.run()
    assert installer.run().updated == 1


def test_c6_the_newer_configuration_wins_and_the_older_says_so_once(queue, clock, caplog):
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


def test_c6_the_older_comes_back_when_the_newer_falls_silent(queue, clock):
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


def test_c8_installs_at_once_and_again_and_closing_leaves_the_ticks(make_shared_queue):
    queue = make_shared_queue("orders")
    runs = threading.Semaphore(0)

    def messages(now: datetime) -> list[CronMessage]:
        runs.release()
        return [CronMessage("tick", now + HOUR)]

    with queue.cron.install(A, "report", timedelta(milliseconds=10), messages) as handle:
        assert all(runs.acquire(timeout=TIMEOUT) for _ in range(3))
        assert handle.wait(TIMEOUT)
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
        assert handle.wait(TIMEOUT)
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "event=install_failed schedule=orders|json/report" in errors[0].getMessage()
    assert queue.stats().scheduled >= 1


def test_c8_close_ends_a_long_sleep(make_shared_queue: MakeQueue):
    handle = make_shared_queue("orders").cron.install(A, "report", DAY, lambda _: [])
    assert handle.wait(TIMEOUT)
    assert handle.close()


def test_c8_what_a_generator_returns_after_close_is_not_installed(make_shared_queue, monkeypatch):
    monkeypatch.setattr("delayed_queue.cron.service.CLOSE_SECONDS", 0.01)
    queue = make_shared_queue("orders")
    started, finish = threading.Event(), threading.Event()

    def messages(now: datetime) -> list[CronMessage]:
        started.set()
        assert finish.wait(TIMEOUT)
        return [CronMessage("tick", now + HOUR)]

    handle = queue.cron.install(A, "report", DAY, messages)
    assert started.wait(TIMEOUT)
    assert not handle.close()
    finish.set()
    monkeypatch.setattr("delayed_queue.cron.service.CLOSE_SECONDS", TIMEOUT)
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
        assert handle.wait(TIMEOUT)
    assert queue.stats().scheduled == 4


def test_c10_a_daily_schedule_fills_its_window(make_shared_queue: MakeQueue, clock: ManualClock):
    queue = make_shared_queue("orders", clock=clock)
    schedule = DailySchedule(
        timezone="UTC", hours=[time(18), time(0), time(18)], schedule_in_advance=2 * DAY
    )
    with queue.cron.install_daily_schedule("report", schedule, payload_of) as handle:
        assert handle.wait(TIMEOUT)
    # Midnight itself is not after now.
    assert queue.stats().scheduled == 4
    assert queue.stats().due == 0


def test_c7_a_slow_generator_repeats_nothing(queue: DelayedQueue, clock: ManualClock):
    """While it writes the ticks of 01:00, another installer handles them."""
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
