"""Dead hosts block no others, and get their waiting callbacks when they are back (J12)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import pytest

from delayed_queue.conf import get_settings
from delayed_queue.http.callbacks.breaker import TRUST_SECONDS, HostState
from delayed_queue.http.models import CallbackAttempt, Host
from delayed_queue.models import Message
from tests.http.callbacks.delivering import add_many, callback_worker, permitted
from tests.http.callbacks.servers import Receiver, closing, silent
from tests.support.processes import wait_until
from tests.support.running import running

pytestmark = pytest.mark.django_db(transaction=True)

SECOND: Final = timedelta(seconds=1)
MANY: Final = 1000


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened:
        yield opened


def test_j12_when_the_host_is_back_all_are_delivered_once(receiver: Receiver) -> None:
    times: dict[str, list[float]] = {}

    async def behave(wire: Any, request: Any) -> None:
        times.setdefault(request.path, []).append(time.time())
        await wire.answer(200 if is_back else 500)

    is_back, receiver.behaviour = False, behave
    with permitted(receiver, BREAKER_PAUSE=2 * SECOND):
        add_many("k", 500, receiver.url, ladder="1s 1s 1s 1s")
        first, second = callback_worker(), callback_worker()
        with running(first), running(second):
            wait_until(lambda: Host.objects.filter(openings=1).exists())
            host = Host.objects.get()
            is_back = True
            wait_until(lambda: not Message.objects.exists())
    failed = sum(len(each) - 1 for each in times.values())
    assert len(times) == 500
    assert failed < 100
    assert first.counts.done + second.counts.done == 500
    # Callbacks were on their way when the first worker opened the breaker; then none until it
    # closes.
    assert host.opened_at is not None
    assert host.open_until is not None
    opened, until = host.opened_at.timestamp(), host.open_until.timestamp()
    assert [at for each in times.values() for at in each if opened + 1.1 < at < until] == []


@pytest.mark.parametrize("behaviour", [silent, closing])
def test_j12_others_between_them_are_not_held_up(receiver: Receiver, behaviour: Any) -> None:
    with Receiver(behaviour) as dead, permitted(receiver, dead, TOTAL_TIMEOUT=30 * SECOND):
        for n in range(20):
            add_many(f"dead{n}x", 100, dead.url)
            add_many(f"good{n}x", 3, receiver.url)
        worker = callback_worker(shutdown_timeout=timedelta(0))
        with running(worker):
            receiver.wait_for_requests(60)
            # While the shard of the dead one is paused.
            add_many("late", 5, receiver.url)
            wait_until(lambda: worker.counts.done == 65)
    assert worker.counts.snoozed < 1000


@pytest.mark.parametrize("pause", [0, 1500])
def test_j12_nothing_else_is_sent_while_a_probe_has_no_answer(receiver, pause):
    receiver.behaviour = silent
    Host.objects.open(f"127.0.0.1:{receiver.port}", "timeout", pause=pause)
    with permitted(receiver, TOTAL_TIMEOUT=30 * SECOND):
        add_many("dead", 5 * MANY, receiver.url)
        worker, started = callback_worker(shutdown_timeout=timedelta(0)), time.monotonic()
        with running(worker):
            receiver.wait_for_requests(1)
            wait_until(lambda: worker.counts.snoozed > 0)
            wait_until(lambda: time.monotonic() - started > 3 * TRUST_SECONDS)
            assert len(receiver.requests) == 1
        rests = (time.monotonic() - started) / TRUST_SECONDS
    # At most the messages of two claims before the first pause, and a few trials after each pause.
    touched = worker.counts.snoozed + Message.objects.filter(attempts__gt=0).count()
    assert touched <= 2 * get_settings().BATCH_SIZE + 100 * (rests + 1)
    assert not CallbackAttempt.objects.exclude(failure="").filter(status__isnull=False).exists()


@pytest.mark.parametrize(
    ("on_wire", "heard", "results", "seconds_each", "is_silent"),
    [
        (8, 0.3, [], 0.1, True),  # it has never answered
        (7, 9, [], 0.1, False),  # one more call may be answered
        (8, 0.2, [], 0.1, False),
        (8, 0.9, [True], 0.1, False),  # it has answered
        (8, 1.1, [True], 0.1, True),
        (8, 7.9, [True], 2.0, False),  # and takes two seconds
        (8, 8.1, [True], 2.0, True),
        (8, 0.3, [False], 2.0, True),
    ],
)
def test_j12_a_host_is_silent(on_wire, heard, results, seconds_each, is_silent):
    host = HostState("example.com:443")
    host.on_wire, host.heard_at = on_wire, time.monotonic() - heard
    for each in results:
        host.circuit.note(is_failure=not each)
    host.seconds_per_answer = seconds_each
    assert host.takes_nothing is is_silent
