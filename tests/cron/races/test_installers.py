"""Concurrent installers: each tick once, one configuration at a time (C6, C7)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, time, timedelta
from functools import partial
from itertools import chain
from typing import Any

import pytest

from delayed_queue import CronMessage, DailySchedule, DelayedQueue, PeriodicSchedule
from delayed_queue.cron.rules import tick_key
from delayed_queue.models import Message, Schedule
from tests.cron.races.cron_host import PERIOD
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.support.processes import LEAN, ROOT, environment

A, B = "a" * 32, "b" * 32
# Across the night when the clocks of Bucharest go back.
START = datetime(2030, 10, 25, tzinfo=UTC)
DAYS = 4
STEP = timedelta(hours=2)


class Host:
    """A process of cron_host, and its pipes."""

    def __init__(self, stack: ExitStack) -> None:
        lines, answers = os.pipe(), os.pipe()
        self.files = lines[0], answers[1]
        self._lines = stack.enter_context(os.fdopen(lines[1], "w"))
        self._answers = stack.enter_context(os.fdopen(answers[0]))

    def tell(self, now: datetime) -> None:
        self._lines.write(f"{now.isoformat()}\n")
        self._lines.flush()

    def answer(self) -> dict[str, Any]:
        line = self._answers.readline()
        assert line, "the host has ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def hosting(hour: str, count: int) -> Iterator[list[Host]]:
    with ExitStack() as stack:
        hosts = [Host(stack) for _ in range(count)]
        files = [each.files for each in hosts]
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.cron.races.cron_host", hour,
             *(f"{given},{taken}" for given, taken in files)],
            cwd=ROOT, env=environment() | LEAN, pass_fds=list(chain(*files)),
            start_new_session=True,
        )  # fmt: skip
        try:
            for each in chain(*files):
                os.close(each)
            yield hosts
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def step(hosts: list[Host], now: datetime, skew: timedelta = timedelta(0)) -> list[dict[str, Any]]:
    """Let all hosts act at once, each with its own clock error."""
    for number, each in enumerate(hosts):
        each.tell(now + skew * number)
    return [each.answer() for each in hosts]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_eight_installers_for_four_days_each_tick_once():
    """In eight processes whose clocks are up to three and a half minutes apart."""
    handled: Counter[tuple[str, str]] = Counter()
    with hosting("03:30", 8) as hosts:
        for number in range(DAYS * (timedelta(days=1) // STEP) + 1):
            for answer in step(hosts, START + number * STEP, timedelta(seconds=30)):
                handled.update(
                    (key.partition("/")[0], payload) for key, payload in answer["handled"]
                )

    end = START + DAYS * timedelta(days=1)
    late = end + timedelta(seconds=30) * 7
    daily = DailySchedule(timezone="Europe/Bucharest", hours=[time(3, 30)])
    expected = Counter(
        (prefix, at.isoformat())
        for prefix, schedule in (("daily", daily), ("periodic", PeriodicSchedule(PERIOD)))
        for at in schedule.times_between(START, late, 10_000)
    )
    assert set(handled.values()) == {1}
    assert handled == expected


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_rolling_deployment_of_two_versions_does_not_flip_flop():
    """Two hosts of the old version are replaced one by one while the others keep running."""
    winners = []
    with hosting("03:30", 2) as old, hosting("04:30", 2) as new_ones:
        step(old, START)
        before = Schedule.objects.get(key_prefix="daily").config_hash
        new: list[Host] = []
        for number in range(1, 7):
            if number % 3 == 1:
                # A new host begins while the others work.
                if new:
                    old.pop()
                new.append(new_ones.pop())
            step([*old, *new], START + number * STEP)
            winners.append(Schedule.objects.get(key_prefix="daily").config_hash)
    assert before not in winners
    assert len(set(winners)) == 1
    keys = Message.objects.filter(key__startswith="daily/").values_list("key", flat=True)
    assert keys
    assert {key.split("/")[1] for key in keys} == set(winners)


def test_eight_threads_installing_the_same_create_each_tick_once(queue: DelayedQueue):
    at = datetime.now(UTC) + timedelta(hours=1)
    messages = [CronMessage(number, at + timedelta(minutes=number)) for number in range(20)]

    reports = together([partial(queue.cron.install_tick, A, "report", messages)] * 8)

    assert sum(report.created for report in reports) == 20
    assert Message.objects.count() == 20


def test_two_configurations_at_once_leave_the_ticks_of_one(queue: DelayedQueue):
    at = datetime.now(UTC) + timedelta(hours=1)
    for _ in range(5):
        together(
            [
                partial(queue.cron.install_tick, each, "report", [CronMessage(1, at)])
                for each in (A, B, A, B)
            ]
        )
        active = Schedule.objects.get(key_prefix="report").config_hash
        assert [each.key for each in Message.objects.all()] == [tick_key("report", active, at)]


def test_installers_of_one_prefix_take_turns(queue, other, admin):
    """An installer that waited reads its predecessor's row: the tick was offered already."""
    at = datetime.now(UTC) + timedelta(hours=1)
    install = partial(queue.cron.install_tick, A, "report", [CronMessage(1, at)])
    queue.cron.install_tick(A, "report", [])
    with ExitStack() as stack:
        with other.transaction():
            mark = int(at.timestamp() * 1000)
            other.execute('UPDATE delayed_queue_schedule SET "lastTick" = %s', [mark])
            # Another prefix does not wait.
            assert queue.cron.install_tick(A, "other", [CronMessage(1, at)]).created == 1
            call = stack.enter_context(calling(install))
            wait_until_blocked(admin, call)
        assert (call.answer().created, call.answer().skipped) == (0, 1)


def test_c4_a_tick_that_is_being_consumed_is_passed_not_waited_for(queue, other):
    past = datetime.now(UTC) - timedelta(minutes=1)
    queue.cron.install_tick(A, "report", [CronMessage(1, past)])
    with other.transaction():
        other.execute("DELETE FROM delayed_queue")
        with calling(partial(queue.cron.install_tick, B, "report", [])) as call:
            assert call.answer().removed == 0
        with calling(partial(queue.cron.install_tick, B, "report", [CronMessage(1, past)])) as call:
            assert call.answer().skipped == 1
