"""Permits of one bucket for many takers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any, Final

import psycopg
import pytest
from django.db import transaction

from delayed_queue.http import rates
from delayed_queue.http.models import Rate
from delayed_queue.http.rates import SharedRate
from delayed_queue.http.store.callers import TAKE_PERMITS
from tests.support.concurrency import calling, together, wait_until_blocked
from tests.support.processes import LEAN, ROOT, environment

ZERO: Final = timedelta(0)
SECONDS: Final = 2.0
NOW: Final = 1_800_000_000_000_000


@pytest.fixture(autouse=True)
def fresh(transactional_db: None) -> Iterator[None]:
    rates.forget()
    yield
    rates.forget()


def params(name: str, n: int, *, now: int | None = NOW) -> dict[str, Any]:
    return {
        "name": name, "least": n, "most": n, "interval": 1e6, "burst": 5_000_000, "now": now,
    }  # fmt: skip


def taking(n: int, *, now: int | None = NOW) -> tuple[int, int]:
    return Rate.objects.take("a", n, n, interval=1e6, burst=5_000_000, now=now)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("exists", [False, True], ids=["new", "known"])
def test_a_taker_waits_for_the_one_before_and_takes_what_that_left(other, admin, exists, end):
    if exists:
        assert taking(1, now=NOW - 100_000_000) == (1, 0)
    other.execute("BEGIN")
    assert other.execute(TAKE_PERMITS, params("a", 3)).fetchall() == [(3, 0)]
    with calling(partial(taking, 3)) as second:
        wait_until_blocked(admin, second)
        other.execute(end)
        answer = second.answer()
    if end == "ROLLBACK":
        assert answer == (3, 0)
    else:
        assert answer[0] == 0
        assert answer[1] > 0
        assert taking(2) == (2, 0)


def test_who_waited_with_an_earlier_clock_is_not_given_more(other, admin):
    other.execute("BEGIN")
    later = params("a", 5, now=NOW + 4_000_000)
    assert other.execute(TAKE_PERMITS, later).fetchall() == [(5, 0)]
    with calling(partial(taking, 1)) as second:
        wait_until_blocked(admin, second)
        other.execute("COMMIT")
        assert second.answer()[0] == 0


def test_of_twenty_threads_five_are_granted_a_burst_of_five():
    answers = together([partial(taking, 1)] * 20)
    assert sum(granted for granted, _ in answers) == 5


def test_twenty_threads_share_what_their_process_took_ahead():
    rate = SharedRate("a", 0.001, 15)
    answers = together([rate.take] * 20)
    assert answers.count(ZERO) == 15


def test_a_rollback_puts_the_permits_back_and_nobody_has_used_them():
    rate = SharedRate("a", 0.001, 5)
    with transaction.atomic():
        assert rate.take(5) == ZERO
        transaction.set_rollback(True)
    assert rate.take(5) == ZERO
    assert rate.take() > ZERO


def test_a_connection_that_ends_while_taking_is_replaced_and_loses_no_more_than_the_chunk(
    other: psycopg.Connection[Any], admin: psycopg.Connection[Any]
):
    rate = SharedRate("a", 0.001, 5)
    assert rate.take() == ZERO
    other.execute("BEGIN")
    other.execute("SELECT FROM delayed_queue_rate FOR UPDATE")
    with calling(partial(rate.take, 4)) as waiting:
        wait_until_blocked(admin, waiting)
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", [waiting.pid])
        other.execute("COMMIT")
        assert waiting.answer() == ZERO
    assert rate.take() > ZERO


@pytest.mark.slow
@pytest.mark.parametrize(
    ("per_second", "burst", "processes"),
    [
        pytest.param(5, 3, 4, marks=pytest.mark.long),
        (500, 20, 2),
        pytest.param(5000, 400, 4, marks=pytest.mark.long),
    ],
)
def test_processes_take_no_more_than_the_rate(per_second: float, burst: int, processes: int):
    """And not much less, since the takers do not wait."""
    command = [
        sys.executable, "-m", "tests.http.races.rate_taker", "shared", str(per_second), str(burst),
        str(SECONDS),
    ]  # fmt: skip
    takers = [
        subprocess.Popen(
            command, cwd=ROOT, env=environment() | LEAN, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for _ in range(processes)
    ]  # fmt: skip
    for each in takers:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    started = time.time()
    for each in takers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    taken = sorted(
        float(line) for each in takers for line in each.communicate(timeout=60)[0].split()
    )

    # Each permit was taken between the start and the time that its taker printed.
    assert len(taken) <= per_second * (taken[-1] - started) + burst
    assert len(taken) >= per_second * (taken[-1] - taken[0]) / 2
